"""Files that a kill at any moment leaves whole, and blocks that one process at a time is in."""

import fcntl
import json
import os
from contextlib import contextmanager


@contextmanager
def written_whole(path):
    """The path of a second file to write, which is then renamed: `path` is the old or the new file, never half of one."""
    partial = path.with_name(path.name + ".partial")
    yield partial
    os.replace(partial, path)


@contextmanager
def alone(folder, name="lock"):
    """Waits until no other process is in this block with this folder and name."""
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_json(path):
    """What a JSON file says. Raises ValueError, one line that names the file, where it is none."""
    return parsed_json(path.read_bytes(), path)


def parsed_json(text, path):
    try:
        return json.loads(text)
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise ValueError(f"{path}: no JSON: {error}") from None


def json_text(value):
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
