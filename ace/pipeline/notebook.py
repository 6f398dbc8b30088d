"""Runs a notebook as a pipeline stage.

    python -m ace.pipeline.notebook notebooks/03_train.ipynb --output results/notebooks/train/x.ipynb -p variant ace

papermill does the work. Added here: an unknown parameter is an error (papermill only warns), progress is passed on to
the terminal, the executed notebook is brought to a form that is the same in every run, and a failure is one line.
"""

import argparse
import ast
import difflib
import logging
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from ruamel.yaml import YAML, YAMLError

from ace.pipeline.kernel import PACKAGE_HOME, PREFIX, OwnKernel, when_orphaned

# Where output is no terminal, a progress bar becomes a line each so many seconds.
PROGRESS_S = 10.0
# ... and a line is cut after so many characters (prompts hold long ones); the executed notebook has all of it.
LINE_SHOWN = 160

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Errors of ace whose text says all that a user needs.
WRITTEN_FOR_USERS = {"ConfigError", "PoolError", "ReportError", "ClientError", "ChronicsError"}

BAR = re.compile(r"\d+%\|.*\||\d+(\.\d+)?(s/|[a-zA-Z]+/s\])|\?[a-zA-Z]+/s\]")


class StageError(Exception):
    """A failure whose text is the one line that the user needs."""


# --- parameters -------------------------------------------------------------------------------------------------------


def parse_value(text):
    """One parameter value, read as YAML 1.2 as DVC does: `off` is text, `1e-4` a number, `[1, 2]` a list."""
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return text
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else text


def parameter_names(path):
    """Names assigned in the notebook's one cell tagged `parameters`, in their order; empty without such a cell."""
    try:
        cells = nbformat.read(path, as_version=4).cells
        tagged = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
        if len(tagged) > 1:
            raise StageError(f"{len(tagged)} cells are tagged `parameters`, one is allowed")
        statements = ast.parse("".join(tagged)).body
    except (ValueError, AttributeError, SyntaxError, nbformat.ValidationError) as error:  # NotJSONError is a ValueError
        raise StageError("not a notebook: " + " ".join(str(error).split())[:100]) from error
    targets = [t for s in statements for t in getattr(s, "targets", [getattr(s, "target", None)])]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def check_parameters(parameters, known):
    for name in parameters:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise StageError(f"no parameter {name!r}; it takes: {', '.join(known) or 'none'}{hint}")


# --- progress ---------------------------------------------------------------------------------------------------------


class Progress:
    """Passes a kernel's output on to a stream. On a terminal as it is; elsewhere progress bars are thinned to lines."""

    def __init__(self, stream, interval_s=PROGRESS_S, clock=time.monotonic):
        self.stream, self.interval_s, self.clock = stream, interval_s, clock
        self.terminal = stream.isatty()
        self.line = ""  # what a terminal would show of the present line
        self.restart = False  # a carriage return came: the next character overwrites the line
        self.shown_s = clock()

    def write(self, text):
        if self.terminal:
            self.stream.write(text)
            return
        for part in re.split(r"(\r|\n)", ESCAPES.sub("", text)):
            if part == "\n":
                if self.line.strip():
                    self.emit()
                self.line, self.restart = "", False
            elif part == "\r":
                self.restart = True
            elif part:
                if self.restart and self.line.strip() and self.clock() - self.shown_s >= self.interval_s:
                    self.emit()
                self.line = part if self.restart else self.line + part
                self.restart = False

    def emit(self):
        line = self.line.rstrip()
        self.stream.write((line if len(line) <= LINE_SHOWN else line[: LINE_SHOWN - 1] + "…") + "\n")
        self.shown_s = self.clock()

    def flush(self):
        self.stream.flush()

    def close(self):
        """A last line without a line end."""
        if not self.terminal and self.line.strip():
            self.emit()
            self.line = ""
        self.flush()


# --- the executed notebook --------------------------------------------------------------------------------------------


def as_shown(text):
    """Text as a terminal leaves it: overwritten and progress-bar lines are gone."""
    lines = []
    for line in ESCAPES.sub("", text).split("\n"):
        drawn = [part for part in line.split("\r") if part]
        lines.append(drawn[-1] if drawn else "")
        if drawn and BAR.search(drawn[-1]):
            lines.pop()
    return "\n".join(lines)


def hide_machine(text, root):
    """Replaces what differs between two machines or two runs: folders, process numbers, addresses of objects."""
    text = re.sub(r"(/\S*)?/ipykernel_\d+/\d+\.py", "<cell>", text)
    for folder, name in ((PREFIX, "<python>"), (root, "."), (PACKAGE_HOME, "."), (Path.home(), "~")):
        if len(str(folder)) > 1:
            text = re.sub(re.escape(str(folder)) + r"\b(?!-)", name, text)
    return re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x...", text)


def merge_streams(outputs):
    """Joins neighbouring outputs of one stream: how a kernel cuts its text depends on time."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if output.output_type == "stream" and last and last.get("name") == output.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def normalise(notebook, root):
    """Brings an executed notebook (in place) to a form that is the same in every run on every machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for index, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.id = f"cell-{index:02d}"
        if cell.cell_type != "code":
            continue
        kept = []
        # Standard error is sorted behind: how the two streams interleave depends on time.
        for output in merge_streams(sorted(cell.outputs, key=lambda o: o.get("name") == "stderr")):
            if output.output_type == "stream":
                output.text = hide_machine(as_shown(output.text), root)
                if output.text.strip():
                    kept.append(output)
                continue
            if output.output_type == "error":
                output.traceback = [hide_machine(line, root) for line in output.traceback]
                output.evalue = hide_machine(output.evalue, root)
            for kind in list(output.get("data", {})):
                if kind.startswith("application/vnd.jupyter.widget"):
                    del output.data[kind]
                elif isinstance(output.data[kind], str) and not kind.startswith("image/png"):
                    output.data[kind] = hide_machine(output.data[kind], root)
            if output.get("data", True):
                kept.append(output)
        cell.outputs = kept
    return notebook


# --- running ----------------------------------------------------------------------------------------------------------


def find_failure(notebook):
    """(number of the cell in the source notebook counted from 1, its first line, error name, error text), or None."""
    number = 0
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "papermill-error-cell-tag" in tags:
            continue
        number += "injected-parameters" not in tags
        for output in cell.get("outputs", []):
            if output.output_type == "error" and not (output.ename == "SystemExit" and output.evalue in {"", "0"}):
                lines = [line.strip() for line in cell.source.splitlines()]
                code = [line for line in lines if line and not line.startswith("#")]
                return number, code[0] if code else "", output.ename, " ".join(output.evalue.split())
    return None


def execute(path, output, parameters, root):
    """Runs the notebook at `path` with its own folder as working directory and writes the executed copy to `output`.

    Raises StageError with one line; what was executed until then lies beside the output as `*.failed.ipynb`.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    running = output.with_suffix(".running.ipynb")
    failed = output.with_suffix(".failed.ipynb")
    output.parent.mkdir(parents=True, exist_ok=True)
    failed.unlink(missing_ok=True)
    streams = Progress(sys.stdout), Progress(sys.stderr)
    problem = None
    try:
        papermill.execute_notebook(
            path.resolve(),
            running.resolve(),
            parameters=parameters,
            kernel_name="python3",
            language="python",
            cwd=path.resolve().parent,
            progress_bar=False,
            stdout_file=streams[0],
            stderr_file=streams[1],
            kernel_manager_class=OwnKernel,
        )
    except PapermillExecutionError:
        number, line, name, text = find_failure(nbformat.read(running, as_version=4))
        problem = text if name in WRITTEN_FOR_USERS else f"cell {number} ({line[:80]}): {name}: {text}"
    except Exception as error:
        text = " ".join(str(error).split())
        problem = f"the kernel died (out of memory?): {text}" if "Dead" in type(error).__name__ else text
    finally:
        OwnKernel.kill_groups()
        for stream in streams:
            stream.close()
    if problem:
        kept = ""
        if running.exists():
            running.replace(failed)
            kept = f" [partial notebook: {shown(failed, root)}]"
        raise StageError(problem + kept)
    text = nbformat.writes(normalise(nbformat.read(running, as_version=4), root), version=4) + "\n"
    running.unlink()
    output.write_text(text, encoding="utf-8")


def shown(path, root):
    """A path as the user would type it."""
    path = Path(path).resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def run(path, output, parameters):
    """Checks everything that can be checked before the first cell, then executes. Raises StageError."""
    root = Path.cwd()
    path, output = Path(path), Path(output)
    try:
        if not path.is_file():
            raise StageError("no such notebook")
        check_parameters(parameters, parameter_names(path))
        execute(path, output, parameters, root)
    except StageError as error:
        raise StageError(f"{shown(path, root)}: {error}") from error


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.notebook", description="Run a notebook as a stage.")
    parser.add_argument("notebook")
    parser.add_argument("--output", "-o", required=True, help="where the executed copy goes")
    parser.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    given = parser.parse_args(arguments)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    if "DVC_STAGE" in os.environ:
        # After a kill -9 of DVC the next `dvc repro` starts the same cell: two of it must not write one checkpoint.
        when_orphaned(lambda: (OwnKernel.kill_groups(), os._exit(1)))
    try:
        run(given.notebook, given.output, {name: parse_value(value) for name, value in given.parameters})
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{given.notebook}: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
