"""The sentences under tables and figures: one Markdown file a table or figure, in this folder.

A file begins with its main note; further ones follow under `## <section>` headings. Numbers and names that code knows are
fields, `{n_seeds}`. So a sentence is changed in its file, and only the tables that show it are stale.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
FIELD = re.compile(r"{(\w+)}")


class NoteError(Exception):
    """A note, a section or a field that is not there; one line."""


def note(name, **fields):
    """The text of notes/<file>.md with its fields filled in. name: "file", or "file.section" for one of its sections."""
    file, _, section = name.partition(".")
    path = FOLDER / f"{file}.md"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.md")))
        raise NoteError(f"there is no note {file!r}; there are {known}")
    sections = _sections(path.read_text(encoding="utf-8"))
    if section not in sections:
        raise NoteError(f"notes/{file}.md has no section {section!r}; it has {', '.join(filter(None, sections)) or 'none'}")
    text = sections[section]
    wanted = set(FIELD.findall(text))
    for problem, names in (("needs", wanted - fields.keys()), ("does not have", fields.keys() - wanted)):
        if names:
            raise NoteError(f"note {name!r} {problem} the fields {', '.join(sorted(names))}")
    return FIELD.sub(lambda match: str(fields[match[1]]), text)


def has(name):
    """Whether there is such a note."""
    file, _, section = name.partition(".")
    path = FOLDER / f"{file}.md"
    return path.is_file() and section in _sections(path.read_text(encoding="utf-8"))


def _sections(text):
    """Heading -> text below it; the main note, before the first heading, has the name ""."""
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    return {"": parts[0].strip(), **{head: body.strip() for head, body in zip(parts[1::2], parts[2::2], strict=True)}}
