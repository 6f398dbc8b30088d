"""Takes the code out of notebooks and modules, so that DVC stages depend on what is computed and not on its prose.

    python -m ace.pipeline.code                             everything that the stage `code` of dvc.yaml depends on
    python -m ace.pipeline.code notebooks/03_train.ipynb    strips the notebook in place -> notebooks/code/03_train.py
    python -m ace.pipeline.code ace                         -> notebooks/code/ace/...: no comments, no docstrings

Without this, a cell run in JupyterLab or a mended docstring would make hours of training stale. All output is
deterministic and files are only written where something changed.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

import nbformat
import yaml

CODE, PIPELINE = Path("notebooks/code"), Path("dvc.yaml")
MAGIC = re.compile(r"^(\s*)([%!].*)$", re.MULTILINE)
# Cell magics whose body is Python all the same.
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")


class CodeError(Exception):
    """A failure whose text is the one line that the user needs."""


def write_if_changed(path, text):
    """Returns True where the file was written."""
    data = text.encode("utf-8")
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


def without_prose(source):
    """Python source without comments, docstrings and layout: the same text means the same program."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            # A statement that is only text is a docstring, or a note below a field: neither is executed.
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [statement for statement in statements if not is_text(statement)]
                setattr(node, block, kept or ([ast.Pass()] if statements and node is not tree else []))
    return ast.unparse(tree)


def is_text(statement):
    """Whether a statement is a string and nothing else."""
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)


# --- notebooks --------------------------------------------------------------------------------------------------------


def strip(notebook):
    """Takes out (in place) what running and saving leave behind: outputs, counts, times, the editor's settings."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.setdefault("id", f"cell-{index:02d}")
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    return notebook


def cell_code(source):
    """One cell's program. Magics, which are no Python, become comments ahead of it."""
    try:
        return without_prose(source)
    except SyntaxError:
        pass
    magics = [found[1].strip() for found in MAGIC.findall(source)]
    if magics and magics[0].startswith("%%") and not magics[0].startswith(PYTHON_CELLS):
        return "\n".join(f"# {line}".rstrip() for line in source.splitlines())
    return "\n".join([f"# {magic}" for magic in magics] + [without_prose(MAGIC.sub(r"\1pass", source))])


def notebook_code(notebook):
    """The text of notebooks/code/<name>.py; cells that hold no code leave no trace."""
    parts = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        try:
            code = cell_code(cell.source)
        except SyntaxError as error:
            raise CodeError(f"cell {number}, line {error.lineno}: {error.msg}") from error
        mark = "# %% [parameters]" if "parameters" in cell.metadata.get("tags", []) else "# %%"
        if code.strip():
            parts.append(f"{mark}\n{code}\n")
    return "\n".join(parts)


def extract_notebook(path, folder=CODE):
    """Strips the notebook in place and writes its code. Returns the path of the code."""
    text = path.read_text(encoding="utf-8")
    try:
        notebook = strip(nbformat.reads(text, as_version=4))
    except (ValueError, AttributeError) as error:  # NotJSONError is a ValueError
        raise CodeError("not a notebook") from error
    code = notebook_code(notebook)
    write_if_changed(path, nbformat.writes(notebook, version=4) + "\n")
    target = folder / f"{path.stem}.py"
    write_if_changed(target, code)
    return target


# --- modules ----------------------------------------------------------------------------------------------------------


def extract_package(package, folder=CODE):
    """Writes every module of the package without prose, copies other files (prompts), removes what is stale."""
    target = folder / package.name
    expected = set()
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(package)
        if not path.is_file() or any(part == "__pycache__" or part.startswith(".") for part in inside.parts):
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            try:
                text = without_prose(text) + "\n"
            except SyntaxError as error:
                raise CodeError(f"{inside}, line {error.lineno}: {error.msg}") from error
        expected.add(target / inside)
        write_if_changed(target / inside, text)
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_file() and path not in expected:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return target


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.code", description="Write code without its prose.")
    what = "notebooks (.ipynb) and folders of packages; none: those that the stage `code` of dvc.yaml depends on"
    parser.add_argument("sources", type=Path, nargs="*", metavar="source", help=what)
    sources = parser.parse_args(arguments).sources
    if not sources:
        if not PIPELINE.is_file():
            print(f"no {PIPELINE} here: run this in the repository's folder, or name what to read", file=sys.stderr)
            return 1
        sources = declared()
        for path in CODE.glob("*"):  # of a notebook that is no more
            if path.is_file() and path.stem not in {source.stem for source in sources}:
                path.unlink()
    failed = [source for source in sources if not _extracted(source)]
    return 1 if failed else 0


def declared(pipeline=PIPELINE):
    """What the stage `code` depends on: list of paths."""
    stages = yaml.safe_load(pipeline.read_text(encoding="utf-8"))["stages"]
    return [Path(dep) for dep in stages["code"]["deps"]]


def _extracted(source):
    """Whether it went well; what did not is said in one line, and the others are done all the same."""
    try:
        if source.suffix == ".ipynb" and source.is_file():
            extract_notebook(source)
        elif (source / "__init__.py").is_file():
            extract_package(source)
        else:
            raise CodeError("neither a notebook nor a package")
    except CodeError as error:
        print(f"{source}: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
