"""What a stage depends on: programs without their prose, the parameters of a cell, the cells that a study plays."""

import importlib
import io
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import parsed, small_params
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ace import config
from ace.pipeline import digests, workspace
from ace.pipeline.digests import Package

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = parsed("dvc.yaml")


def write(root, files):
    """files: {path: text}, below the package `ace`."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "ace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (root / "ace").rglob("*/"):
        if not (folder / "__init__.py").exists() and list(folder.glob("*.py")):
            (folder / "__init__.py").touch()


# --- code without prose -----------------------------------------------------------------------------------------------


def test_prose_and_layout_leave_no_trace_and_code_does():
    bare = "class A:\n    x: int\n\n    def f(self, a):\n        return {'k': a}\n\ndef g():\n    pass"
    commented = '''"""Module."""
# why
class A:
    """Class."""
    x: int
    """Note below a field."""

    def f(self, a):
        """Does it."""
        return {"k":
                a}  # what


def g():
    """Only a docstring."""
'''
    assert digests.without_prose(commented) == digests.without_prose(bare) == bare
    assert digests.without_prose(bare.replace("'k'", "'j'")) != bare
    assert digests.without_prose("x = '# no comment'\n") == "x = '# no comment'"
    compile(digests.without_prose("if a:\n    'text'\nelse:\n    'more'"), "", "exec")


def test_magics_become_comments_and_the_rest_stays_python():
    assert digests.cell_code("%matplotlib inline\nx = 1  # note\nif x:\n    !ls\n") == (
        "# %matplotlib inline\n# !ls\npass\nx = 1\nif x:\n    pass"
    )
    assert digests.cell_code("%%time\nx = 1") == "# %%time\npass\nx = 1"
    assert digests.cell_code("%%bash\nls | wc") == "# %%bash\n# ls | wc"
    assert digests.cell_code('text = """\n% not a magic\n"""').startswith("text = ")


def made_notebook(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    tagged = new_code_cell("a = 1  # of what", metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Why"), tagged, *map(new_code_cell, cells)]), path)
    return path


def test_running_and_saving_a_notebook_changes_neither_its_code_nor_the_stripped_file(tmp_path):
    path = made_notebook(tmp_path / "n.ipynb", "# only a comment", "a + 1")
    code = digests.read_notebook(path)
    clean = path.read_bytes()
    assert code == "# %% [parameters]\na = 1\n\n# %%\na + 1\n"

    ran = nbformat.read(path, as_version=4)
    ran.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    ran.cells[3].outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=9)]
    ran.cells[3].execution_count = 9
    ran.cells[3].metadata = {"execution": {"iopub.status.busy": "2026"}, "collapsed": False}
    nbformat.write(ran, path)
    assert path.read_bytes() != clean
    assert digests.read_notebook(path) == code and path.read_bytes() == clean
    before = path.stat().st_mtime_ns
    digests.read_notebook(path)
    assert path.stat().st_mtime_ns == before, "nothing to change, nothing written"


# --- programs ---------------------------------------------------------------------------------------------------------

LOOP = '"""The loop."""\nfrom ace.rl import sac\n\n\ndef run():\n    from ace.llm.text import words\n    return sac, words\n'


@pytest.fixture
def toy(tmp_path):
    write(tmp_path, {
        "loop.py": LOOP, "rl/sac.py": "LR = 1e-3  # why\n", "llm/text.py": "words = open('prompts/a.txt')\n",
        "llm/prompts/a.txt": "ask", "llm/aside.txt": "of no program", "report/style.py": "RED = 1\n",
        "report/notes/main.md": "A note.", "other.py": "x = 1\n",
    })  # fmt: skip
    return tmp_path


def changed(root, code, path, old, new, without=()):
    """Whether the program's digest is another after this edit."""
    before = Package(root).program(code, without)
    file = root / "ace" / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return Package(root).program(code, without) != before


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("loop.py", "The loop.", "The loop, as the paper has it.", False),
        ("rl/sac.py", "# why", "# because", False),
        ("rl/sac.py", "1e-3", "1e-4", True),
        ("llm/text.py", "words =", "words = other =", True),  # imported in a function
        ("llm/prompts/a.txt", "ask", "ask again", True),
        ("llm/aside.txt", "of", "still of", False),
        ("report/notes/main.md", "A note.", "Another note.", False),
        ("report/style.py", "1", "2", False),
        ("other.py", "1", "2", False),
        ("rl/__init__.py", "", "y = 1\n", True),
    ],
)
def test_a_program_changes_with_what_it_computes(toy, path, old, new, stale):
    assert changed(toy, "from ace.loop import run\nfrom ace.report.style import RED", path, old, new) == stale


def test_looks_count_where_pictures_are_the_result_and_other_kinds_do_not(toy):
    write(toy, {"report/figures.py": "from ace.report import style\n"})
    assert changed(toy, "from ace.report import figures", "report/style.py", "RED = 1", "RED = 2")
    assert not changed(toy, "from ace import loop", "rl/sac.py", "1e-3", "1e-4", without={"ace.rl"})


def code_of(path):
    return "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")


@pytest.mark.parametrize("name", ["03_train", "10_table_main"])
def test_what_a_notebook_imports_is_in_its_program(name):
    """Against Python: whatever of ace is loaded once its imports have run."""
    code = code_of(ROOT / f"notebooks/{name}.ipynb")
    lines = [line for line in code.splitlines() if line.startswith(("from ace", "import ace"))]
    script = "\n".join([*lines, "import sys", "print(*[name for name in sys.modules if name.split('.')[0] == 'ace'])"])
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= Package(ROOT).closure(digests.without_prose(code))


def test_no_stage_that_measures_depends_on_how_results_are_shown():
    package = Package(ROOT)
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        if path.stem[:2] in ("01", "02", "03") or path.stem.endswith("_measure"):
            code = digests.without_prose(code_of(path))
            assert not {name for name in package.closure(code, {digests.LOOKS}) if name.startswith("ace.report.")}, path.stem
            assert package.program(code) == package.program(code, {digests.LOOKS}), "a new colour recomputes nothing"


@pytest.mark.parametrize("study", config.STUDIES)
def test_how_a_study_is_drawn_is_in_the_program_that_shows_it(study):
    package, code = Package(ROOT), digests.without_prose(code_of(ROOT / f"notebooks/studies/{study}_show.ipynb"))
    reached = package.closure(code)
    assert f"ace.studies.{study}.show" in reached and {"ace.report.formatting", "ace.report.style"} & reached
    before = package.program(code)
    for module in ("ace.report.style", "ace.report.formatting"):
        changed = Package(ROOT)
        changed.codes[module] = changed.code(module) + "\nMORE = 1"
        assert (changed.program(code) != before) == (module in reached), module


# --- parameters -------------------------------------------------------------------------------------------------------


def made(change=None):
    return config.Params.model_validate(small_params(change))


def differing(a, b, place=()):
    """Places where two nested dicts differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {found for key in {**a, **b} for found in differing(a.get(key), b.get(key), (*place, key))}
    return set() if a == b else {".".join(place)}


def test_a_new_variant_concerns_its_cell_and_the_tables():
    def more(raw):
        raw["grid"]["variants"].append("ace_K01")  # no study plays it

    places = differing(digests.parameters(made()), digests.parameters(made(more)))
    assert places == {"cells.case14.ace_K01", "sections.paper"}


@pytest.mark.parametrize(
    ("change", "stale", "fresh"),
    [
        (lambda raw: raw["variants"]["ace"].update(sac={"bc": 0.1}), ["cells.case14.ace"], ["cells.case14.sac"]),
        (lambda raw: raw["base"]["sac"].update(lr=0.5), ["cells.case14.ace", "cells.case14.sac"], ["sections.language_model"]),
        (lambda raw: raw["language_model"].update(steps=9), ["sections.language_model"], ["cells.case14.ace"]),
        (lambda raw: raw["official_score"].update(episodes=1), ["sections.official_score"], ["sections.foresight"]),
        (lambda raw: raw["environments"]["case14"].update(horizon=99), ["environments.case14", "cells.case14.ace"],
         ["environments.wcci2020"]),
        (lambda raw: raw["environments"]["wcci2020"]["weeks"].update(months=[7]), ["weeks.wcci2020"],
         ["environments.wcci2020", "weeks.wcci2022"]),
        (lambda raw: raw["environments"]["wcci2020"]["weeks"].update(forecast_sd=0.5), ["environments.wcci2020"],
         ["weeks.wcci2020"]),
        (lambda raw: raw["chronics"].update(train=41), ["weeks.wcci2020", "weeks.neurips2020"], ["environments.wcci2020"]),
        (lambda raw: raw["base"]["greedy"].update(shortlist=9), ["sections.environments"], ["sections.foresight"]),
        (lambda raw: raw.update(seeds=[0, 1]), ["cells.case14.ace"], ["cells.case14.reconnect", "sections.language_model"]),
    ],
)  # fmt: skip
def test_a_changed_section_concerns_those_that_use_it(change, stale, fresh):
    places = differing(digests.parameters(made()), digests.parameters(made(change)))
    assert places >= set(stale) and not places & set(fresh)


def test_a_study_is_stale_by_the_cells_that_it_declares(tmp_path):
    params = made()
    folder = tmp_path / "results/runs/case14"

    def run(variant, survival):
        (folder / variant).mkdir(parents=True, exist_ok=True)
        (folder / variant / "manifest.json").write_text(json.dumps({"seeds": {"0": {"budget": {}}}}))
        (folder / variant / "episodes.csv").write_text(f"seed,episode,survival\n0,0,{survival}\n")

    for variant in ("sac", "ace"):
        run(variant, 0.5)
    before = digests.played(params, tmp_path)
    run("expert_100k", 0.9)
    assert digests.played(params, tmp_path) == before, "of another cell"
    run("ace", 0.6)
    after = digests.played(params, tmp_path)
    assert {place.split(".")[0] for place in differing(before, after)} == set(config.STUDIES)
    assert not differing(before, after) & {"foresight.wcci2020"}
    (folder / "ace/training.csv").write_text("seed,decisions,entropy\n0,10,1.0\n")
    assert {place.split(".")[0] for place in differing(after, digests.played(params, tmp_path))} == set(config.STUDIES)


SHOWS = {"foresight": "write_foresight", "official_score": "write_scores"}


@pytest.mark.parametrize("study", SHOWS)
def test_a_study_is_shown_beside_a_new_variant_and_opens_the_cells_that_it_declares(study, params, tmp_path, monkeypatch):
    grid = params.grid.model_copy(update={"variants": [*params.grid.variants, "mine"]})
    more = params.model_copy(update={"grid": grid, "variants": {**params.variants, "mine": {}}})
    opened, own = set(), io.open
    monkeypatch.setattr(io, "open", lambda file, *rest, **named: (opened.add(str(file)), own(file, *rest, **named))[1])
    monkeypatch.setattr("builtins.open", io.open)
    show = importlib.import_module(f"ace.studies.{study}.show")
    getattr(show, SHOWS[study])(more, ROOT / "results", tmp_path)
    runs = ROOT / "results/runs"
    cells = {Path(name).relative_to(runs).parts[:2] for name in opened if Path(name).is_relative_to(runs)}
    assert cells <= {(env, v) for env in grid.environments for names in params.played(study, env) for v in names}
    assert cells


def test_errors_are_one_line_and_keep_what_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_params()))
    write(tmp_path, {"a.py": "x = 1\n"})
    good = made_notebook(tmp_path / "notebooks/good.ipynb", "from ace import a")
    assert digests.main([]) == 0
    written = (tmp_path / "results/digests.json").read_bytes()
    made_notebook(tmp_path / "notebooks/n.ipynb", "x = = 1")
    assert digests.main([]) == 1
    assert capsys.readouterr().err == "notebooks/n.ipynb: cell 3, line 1: invalid syntax\n"
    (tmp_path / "notebooks/n.ipynb").write_text("{")
    assert digests.main([]) == 1
    assert capsys.readouterr().err == "notebooks/n.ipynb: not a notebook\n"
    (tmp_path / "notebooks/n.ipynb").unlink()
    (tmp_path / "ace/a.py").write_text("x = = 1\n")
    assert digests.main([]) == 1
    assert capsys.readouterr().err == "ace/a.py, line 1: invalid syntax\n"
    assert (tmp_path / "results/digests.json").read_bytes() == written and good.is_file()


@pytest.mark.parametrize(
    ("name", "text"), [("manifest.json", "{"), ("episodes.csv", "seed,episode\n1,0\n"), ("episodes.csv", "a,b\n1,0\n")]
)
def test_a_broken_cell_is_named_in_one_line(tmp_path, monkeypatch, capsys, name, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_params()))
    cell = tmp_path / "results/runs/case14/ace"
    cell.mkdir(parents=True)
    (cell / "manifest.json").write_text('{"seeds": {"0": {}}}')
    (cell / "episodes.csv").write_text("seed,episode\n0,0\n")
    assert digests.main(["played"]) == 0
    written = (tmp_path / "results/played.json").read_bytes()
    (cell / name).write_text(text)
    assert digests.main(["played"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("results/runs/case14/ace") and said.count("\n") == 1
    assert (tmp_path / "results/played.json").read_bytes() == written


# --- the declared pipeline --------------------------------------------------------------------------------------------


LAPTOP, QUICK, PAPER = (ROOT / name for name in ("params.yaml", "profiles/quick/params.yaml", "profiles/paper/params.yaml"))


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """{file of parameters: {name: stage}} as DVC reads each dvc.yaml, the repository's and those of workspaces."""
    from dvc.repo import Repo

    found = {}
    logging.disable()  # DVC writes to the stream of the test that imported it first, which is closed by now
    try:
        others = [(path, workspace.pipeline_for(ROOT, path)) for path in (QUICK, PAPER)]
        for path, text in ((LAPTOP, (ROOT / "dvc.yaml").read_bytes()), *others):
            folder = tmp_path_factory.mktemp("pipeline")
            (folder / "dvc.yaml").write_bytes(text)
            shutil.copytree(ROOT / "cells", folder / "cells", ignore=shutil.ignore_patterns("dvc.lock"))
            (folder / "params.yaml").write_bytes(path.read_bytes())
            with Repo.init(str(folder), no_scm=True) as repo:
                found[path] = {stage.name: stage for stage in repo.index.stages}
        return found
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(params=[LAPTOP, QUICK], ids=["laptop", "quick"])
def scale(request, pipelines):
    """(parameters, {name: stage})"""
    return config.load(request.param), pipelines[request.param]


def keys(stage):
    """Keys of results/digests.json that a stage depends on."""
    return {key for dep in stage.deps if "digests.json" in dep.def_path for key in getattr(dep, "params", ())}


def test_every_stage_that_runs_a_notebook_depends_on_its_program_and_every_key_exists(scale):
    params, stages = scale
    found = {"programs": digests.programs(ROOT), **digests.parameters(params)}
    for name, stage in stages.items():
        words = [word for word in stage.cmd.split() if word.startswith("notebooks/")]
        assert not words or any(key.startswith(f"programs.{Path(words[0]).stem}") for key in keys(stage)), name
        assert [key for key in keys(stage) if digests.section(found, key) is None] == [], name


def test_every_notebook_and_every_note_has_a_stage(pipelines):
    stages = [stage for each in pipelines.values() for stage in each.values()]
    run = {word for stage in stages for word in stage.cmd.split() if word.startswith("notebooks/")}
    text = (ROOT / "dvc.yaml").read_text()
    run |= set(re.findall(r"(?<!/)notebooks/[\w/]+\.ipynb", text))  # of an empty matrix too
    assert "notebooks/studies/${item.arm}_run.ipynb" in text
    run |= {f"notebooks/studies/{arm}_run.ipynb" for arm in ("also", "camel")}
    assert run == {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").rglob("*.ipynb")}
    read = {dep.def_path for stage in stages for dep in stage.deps if dep.def_path.endswith(".md")}
    assert read == {path.relative_to(ROOT).as_posix() for path in (ROOT / "ace").rglob("*.md")}


def test_every_cell_of_the_grid_has_one_stage(scale):
    params, stages = scale
    made = [out.def_path for stage in stages.values() for out in stage.outs if out.def_path.startswith("results/runs/")]
    cells = digests.cells_of(params)
    assert sorted(made) == sorted(f"results/runs/{env}/{variant}" for env, variant in cells)


def test_the_digests_of_played_cells_depend_on_the_code_that_computes_them(pipelines):
    deps = [dep.def_path for dep in pipelines[LAPTOP]["played"].deps]
    package = Package(ROOT)
    for module in package.closure(package.code("ace.pipeline.digests")) | {"ace.pipeline.digests"}:
        path = package.path(module).relative_to(ROOT).as_posix()
        empty = not package.code(module).strip()
        assert empty or module == "ace" or any(f"{path}/".startswith(f"{dep}/") for dep in deps), module


def test_every_out_is_kept_in_git_and_none_in_a_cache(scale):
    _, stages = scale
    assert [out.def_path for stage in stages.values() for out in stage.outs if out.use_cache] == []


def test_nothing_of_studies_or_deployed_policies_is_committed_that_no_stage_makes(pipelines):
    """Or nothing would check it or make it again."""
    outs = [ROOT / out.def_path for stage in pipelines[LAPTOP].values() for out in stage.outs]
    by_hand = [ROOT / "results/studies/pretrained"]
    there = [path for place in ("studies", "deployed") for path in (ROOT / "results" / place).rglob("*") if path.is_file()]
    assert there and [path for path in there if not any(path.is_relative_to(place) for place in (*outs, *by_hand))] == []
