"""Files that a kill at any moment leaves whole."""

import os
from contextlib import contextmanager


@contextmanager
def written_whole(path):
    """The path of a second file to write, which is then renamed: `path` is the old or the new file, never half of one."""
    partial = path.with_name(path.name + ".partial")
    yield partial
    os.replace(partial, path)
