"""Digests that the stages of dvc.yaml depend on: of what is computed, not of its prose.

    python -m ace.pipeline.digests            results/digests.json: programs, and sections of params.yaml
    python -m ace.pipeline.digests played     results/played.json: the cells that each study plays again

A program is a notebook's code and that of every module of `ace` that it imports, however far away, without comments and
docstrings (prompts count, notes under tables don't). So a cell run in JupyterLab or a changed comment leaves all
results up to date, and a changed formula makes those stale that it has a part in. A cell's digest holds its resolved
parameters: a variant's change is its own.
"""

import argparse
import ast
import functools
import hashlib
import json
import re
import sys
from pathlib import Path

import nbformat
from safetensors import SafetensorError

from ace import config
from ace.run_files import cell_folder, read_cell

DIGESTS, PLAYED = Path("results/digests.json"), Path("results/played.json")
MAGIC = re.compile(r"^(\s*)([%!].*)$", re.MULTILINE)
# Cell magics whose body is Python all the same.
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")

LOOKS = "ace.report.style"
"""How a stage's own pictures look is no result: left out of a notebook that imports it and nothing else of the report."""

KINDS = {
    "00_weeks": {"ace.config", "ace.report"},
    "03_train": {"ace.baselines"},
    "03_train_baseline": {"ace.also", "ace.coevolve", "ace.rl", "ace.llm"},
    "03_train_lm_baseline": {"ace.also", "ace.coevolve", "ace.rl"},
    "environments_measure": {"ace.rl", "ace.llm"},
}
"""Programs that are less than what their notebook imports. Weeks need RTE's generator: how parameters are checked and how tables
look is left out. Notebook 03 by kind of method: without what ace/experiment.py imports for the other kinds only. What
learns nothing is measured without what learns."""

MODEL = ["language_model", "base.operator", "base.refine", "base.shape", "base.finetune", "base.llm"]
SECTIONS = {
    "language_model": MODEL,
    "paper": ["seeds", "grid", "scenarios", "environments", "base", "variants", "lora"],
    "also_model": ["also_model", "base", "variants.sac"],
    "environments": ["base.operator", "base.greedy", "variants.do_nothing", "variants.reconnect", "variants.greedy"],
    "foresight": ["foresight", "base.operator", "base.llm"],
    "lora": ["lora", *MODEL],
    "official_score": ["official_score", "base.operator"],
    "pretrained_model": ["pretrained_model", *MODEL],
    "rates": ["rates", "base.greedy", "base.sac", *MODEL],
}
"""What the stages of each kind read of params.yaml, beside the environments and the cells."""


class DigestError(Exception):
    """A failure whose text is the one line that the user needs."""


def digest(value):
    """Of a text, or of anything that JSON can hold."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def write_if_changed(path, text):
    data = text.encode("utf-8")
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# --- code without prose -----------------------------------------------------------------------------------------------


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
    """Its code cells as one text; cells that hold no code leave no trace."""
    parts = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        try:
            code = cell_code(cell.source)
        except SyntaxError as error:
            raise DigestError(f"cell {number}, line {error.lineno}: {error.msg}") from error
        mark = "# %% [parameters]" if "parameters" in cell.metadata.get("tags", []) else "# %%"
        if code.strip():
            parts.append(f"{mark}\n{code}\n")
    return "\n".join(parts)


def read_notebook(path):
    """The code of a notebook, which is stripped in place."""
    try:
        notebook = strip(nbformat.reads(path.read_text(encoding="utf-8"), as_version=4))
    except (ValueError, AttributeError) as error:  # NotJSONError is a ValueError
        raise DigestError("not a notebook") from error
    code = notebook_code(notebook)
    write_if_changed(path, nbformat.writes(notebook, version=4) + "\n")
    return code


# --- programs ---------------------------------------------------------------------------------------------------------


class Package:
    """The modules of `ace` below a folder, each read once."""

    def __init__(self, root):
        self.root, self.codes, self.imported = Path(root), {}, {}

    def path(self, module):
        """The file of a module or package, or None."""
        place = self.root.joinpath(*module.split("."))
        return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)

    def code(self, module):
        if module not in self.codes:
            path = self.path(module)
            try:
                self.codes[module] = without_prose(path.read_text(encoding="utf-8"))
            except SyntaxError as error:
                raise DigestError(f"{path.relative_to(self.root)}, line {error.lineno}: {error.msg}") from error
        return self.codes[module]

    def imports(self, code):
        """Modules of ace that a program imports itself, in functions too, with the packages that they lie in."""
        found = set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in names:
                parts = name.split(".")
                found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)} if parts[0] == "ace" else set()
        return {name for name in found if self.path(name)}

    def closure(self, code, without=()):
        """All modules that a program brings in; none of `without` nor what only these bring in."""
        found, waiting = set(), self.imports(code)
        while waiting:
            module = waiting.pop()
            if module in found or any(f"{module}.".startswith(f"{each}.") for each in without):
                continue
            found.add(module)
            if module not in self.imported:
                self.imported[module] = self.imports(self.code(module))
            waiting |= self.imported[module] - found
        return found

    def data(self, modules):
        """{path: text} of what is no Python and named by one of the modules beside it: prompts, styles. Notes are prose."""
        codes, found = {}, {}
        for module in modules:
            codes[self.path(module).parent] = codes.get(self.path(module).parent, "") + self.code(module)
        for folder, code in codes.items():
            for path in folder.rglob("*"):
                home = next(parent for parent in path.parents if (parent / "__init__.py").is_file())
                inside = path.relative_to(folder).parts
                if path.is_file() and home == folder and path.suffix not in {".py", ".pyc", ".md"} and inside[0] in code:
                    found[path.relative_to(self.root).as_posix()] = path.read_text(encoding="utf-8")
        return found

    def program(self, code, without=()):
        """What a notebook's code does, as one digest."""
        direct = self.imports(code)
        drawn = LOOKS in direct and {m for m in direct if m.startswith("ace.report")} <= {"ace.report", LOOKS}
        modules = self.closure(code, {*without, LOOKS} if drawn else without)
        return digest([code, {module: self.code(module) for module in modules}, self.data(modules)])


def programs(root):
    """{notebook's name: digest of its program}, of every notebook below notebooks/; they are stripped in place."""
    package, found = Package(root), {}
    for path in sorted((root / "notebooks").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts or path.name.endswith((".running.ipynb", ".failed.ipynb")):
            continue
        try:
            code = read_notebook(path)
        except DigestError as error:
            raise DigestError(f"{path.relative_to(root)}: {error}") from error
        for name in [kind for kind in KINDS if kind.startswith(path.stem)] or [path.stem]:
            found[name] = package.program(code, KINDS.get(name, ()))
    return found


# --- parameters -------------------------------------------------------------------------------------------------------


def section(raw, place):
    """raw: params.yaml as a dict; place: keys with dots between. None where there is no such section."""
    for key in place.split("."):
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw


def cells_of(params):
    """[(environment, variant)] of the declared grid."""
    return [(environment, variant) for _, environment, variant in params.grid.cells]


def making(environment, chronics):
    """Digest of what weeks are made of: the grid, when they may begin, how many."""
    return digest([environment["grid2op"], {key: environment["weeks"][key] for key in ("path", "year", "months")}, chronics])


def parameters(params):
    """Digests of what stages read of params.yaml. params: config.Params."""
    raw = {**params.model_dump(), "base": params.base.as_recorded()}
    environments = {name: each.without_making() for name, each in params.environments.items()}
    cells = {}
    for environment, variant in cells_of(params):
        whole = [params.scale, params.seeds_of(variant), raw["scenarios"], params.settings(variant).as_recorded()]
        cells.setdefault(environment, {})[variant] = digest([*whole, environments[environment]])
    return {
        "cells": cells,
        "environments": {name: digest([params.scale, raw["scenarios"], each]) for name, each in environments.items()},
        "weeks": {name: making(each, raw["chronics"]) for name, each in raw["environments"].items() if each["weeks"]},
        "sections": {name: digest([params.scale, [section(raw, p) for p in places]]) for name, places in SECTIONS.items()},
        "language_models": {name: digest(each) for name, each in raw["language_models"].items()},
    }


def played(params, root):
    """{study: {environment: digest}}: settings and results of the cells that each study declares; "all": of all environments."""
    found, results = {}, functools.cache(functools.partial(_results, root))
    for study in config.STUDIES:
        for environment in params.grid.everywhere:
            names = [name for names in params.played(study, environment) for name in names]
            cells = [
                [name, params.seeds_of(name), params.settings(name).as_recorded(), results(environment, name)] for name in names
            ]
            found.setdefault(study, {})[environment] = digest(cells)
        found[study]["all"] = digest(found[study])
    return found


def _results(root, environment, variant):
    """{seed: digest} of what a cell holds, None where nothing was run: the study says so itself."""
    folder = cell_folder(root / "results", environment, variant)
    try:
        return {seed: run.digest() for seed, run in read_cell(folder).items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, OSError, EOFError, SafetensorError) as error:
        name = folder.relative_to(root).as_posix()
        said = f"{error}".replace(f"{root}/", "")
        raise DigestError(said if name in said else f"{name}: {said}") from error


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.digests", description="Write what stages depend on.")
    parser.add_argument("what", nargs="?", choices=["code", "played"], default="code")
    what = parser.parse_args(arguments).what
    root = Path.cwd()
    try:
        params = config.load(root / "params.yaml")
        if what == "played":
            found, path = played(params, root), PLAYED
        else:
            found, path = {"programs": programs(root), **parameters(params)}, DIGESTS
    except (DigestError, config.ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    write_if_changed(path, json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
