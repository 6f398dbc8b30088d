"""Notebooks as stages, and workspaces."""

import gzip
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from conftest import small_params
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ace.pipeline import campaign, kernel, notebook, repro, workspace

ROOT = Path(__file__).resolve().parents[1]
ENV = os.environ | {"PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"}


def write_notebook(path, parameters, *cells):
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Why"), tagged, *map(new_code_cell, cells)]), path)


def stage(folder, *arguments, **kwargs):
    command = [sys.executable, "-m", "ace.pipeline.notebook", *arguments]
    return subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, **kwargs)


def dvc(folder, *arguments):
    return subprocess.run([*repro.dvc(), *arguments], cwd=folder, env=ENV, capture_output=True, text=True)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ace", "ace"),
        ("3", 3),
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("true", True),
        ("off", "off"),
        ("no", "no"),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("2020-01-02", "2020-01-02"),
        ("a: b: c", "a: b: c"),
        ("010", 10),
    ],
)
def test_values_are_read_as_dvc_reads_them(text, value):
    got = notebook.parse_value(text)
    assert got == value and type(got) is type(value)


def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "a.ipynb", "environment = 'x'  # which grid\nseed: int = 1")
    assert notebook.main(["a.ipynb", "-o", "out/a.ipynb", "-p", "enviroment", "y"]) == 1
    shown = capsys.readouterr().err
    assert shown == ("a.ipynb: no parameter 'enviroment'; it takes: environment, seed; did you mean environment?\n")
    assert not (tmp_path / "out").exists(), "nothing was started"


def test_a_missing_or_broken_notebook_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert notebook.main(["none.ipynb", "-o", "o.ipynb"]) == 1
    assert capsys.readouterr().err == "none.ipynb: no such notebook\n"
    (tmp_path / "broken.ipynb").write_text("{")
    assert notebook.main(["broken.ipynb", "-o", "o.ipynb"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("broken.ipynb: not a notebook") and shown.count("\n") == 1


def test_two_parameter_cells_are_refused(tmp_path):
    cells = [new_code_cell(f"a = {n}", metadata={"tags": ["parameters"]}) for n in (1, 2)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    with pytest.raises(notebook.StageError, match="2 cells are tagged"):
        notebook.parameter_names(tmp_path / "a.ipynb")


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_bar_becomes_a_line_each_interval_and_its_end():
    stream, now = io.StringIO(), [0.0]
    progress = notebook.Progress(stream, interval_s=10, clock=lambda: now[0])
    progress.write("start\n")
    for step in range(1, 31):
        now[0] = step
        progress.write(f"\r{step}/30 \x1b[A")
    progress.write("\n")
    progress.write("end without a line end")
    progress.close()
    # Step n is overwritten at n + 1 s. Due are "9/30" at 10 s and so on; its line end keeps the last.
    assert stream.getvalue().splitlines() == ["start", "9/30", "19/30", "29/30", "30/30", "end without a line end"]


def test_a_long_line_is_cut_and_says_so():
    stream = io.StringIO()
    notebook.Progress(stream).write("x" * 1000 + "\nshort\n")
    long, short = stream.getvalue().splitlines()
    assert len(long) == notebook.LINE_SHOWN and long.endswith("x…") and short == "short"


def test_a_terminal_gets_the_bytes_as_they_are():
    stream = io.StringIO()
    stream.isatty = lambda: True
    notebook.Progress(stream).write("\r10%|#  |\x1b[A")
    assert stream.getvalue() == "\r10%|#  |\x1b[A"


# --- the executed notebook --------------------------------------------------------------------------------------------


def executed(seconds, root, chunks):
    """The same notebook as two runs on two machines would leave it."""
    cell = new_code_cell("run()", execution_count=1, metadata={"papermill": {"duration": seconds}, "tags": ["x"]})
    cell.outputs = [
        *[new_output("stream", name="stdout", text=chunk) for chunk in chunks],
        new_output("stream", name="stderr", text=f"\r 10%|#    | 1/10 [00:0{seconds}<00:01, {seconds}.1it/s]"),
        new_output("stream", name="stderr", text=f"\r100%|#####| 10/10 [00:0{seconds}<00:00, {seconds}.2s/it]\n"),
        new_output("stream", name="stderr", text=f"{root}/notebooks/x.py:1: Warning: beware\n"),
        new_output("execute_result", {"text/plain": f"<object at 0x7f{seconds}abc123>"}, execution_count=1),
        new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": str(seconds)}}),
    ]
    return new_notebook(cells=[cell], metadata={"papermill": {"start_time": seconds}, "widgets": {"a": seconds}})


def test_two_runs_on_two_machines_leave_the_same_notebook():
    first = executed(3, Path("/tmp/one"), ["saved to /tmp/one/results\n", "done\n"])
    second = executed(7, Path("/srv/other/two"), ["saved to /srv/other/two/res", "ults\ndone\n"])
    texts = [
        nbformat.writes(notebook.normalise(each, root), version=4)
        for each, root in ((first, Path("/tmp/one")), (second, Path("/srv/other/two")))
    ]
    assert texts[0] == texts[1]
    (cell,) = json.loads(texts[0])["cells"]
    assert cell["metadata"] == {"tags": ["x"]}
    assert "".join(cell["outputs"][0]["text"]) == "saved to ./results\ndone\n"
    by_name = {output.get("name"): output for output in cell["outputs"]}
    assert "".join(by_name["stderr"]["text"]) == "./notebooks/x.py:1: Warning: beware\n", "warnings stay, bars go"
    assert len(cell["outputs"]) == 3


def test_a_failure_is_told_by_the_number_and_line_of_the_source():
    failed = new_code_cell("\n# why\n  total = 1 / 0\nmore()")
    failed.outputs = [new_output("error", ename="ZeroDivisionError", evalue="division\nby zero", traceback=[])]
    cells = [
        new_code_cell("papermill's mark", metadata={"tags": ["papermill-error-cell-tag"]}),
        new_markdown_cell("one"),
        new_code_cell("a = 1", metadata={"tags": ["parameters"]}),
        new_code_cell("a = 2", metadata={"tags": ["injected-parameters"]}),
        failed,
    ]
    assert notebook.find_failure(new_notebook(cells=cells)) == (
        3,
        "total = 1 / 0",
        "ZeroDivisionError",
        "division by zero",
    )
    assert notebook.find_failure(new_notebook(cells=cells[:-1])) is None


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_stage_runs_in_the_notebooks_folder_with_this_interpreter_and_forced_settings(tmp_path):
    write_notebook(
        tmp_path / "notebooks/a.ipynb",
        "name = 'none'\nrate = 1.0",
        "import json, os, sys\nimport ace\nprint('working')\n"
        "facts = [os.getcwd(), sys.executable, ace.__file__, os.environ['OMP_NUM_THREADS'], name, rate]\n"
        "open('../facts.json', 'w').write(json.dumps(facts));",
    )
    arguments = ("notebooks/a.ipynb", "-o", "results/deep/a.ipynb", "-p", "name", "two words", "-p", "rate", "1e-3")
    outputs = []
    for _ in range(2):
        result = stage(tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        assert result.stdout == "working\n" and result.stderr == ""
        outputs.append((tmp_path / "results/deep/a.ipynb").read_bytes())
    assert outputs[0] == outputs[1]
    assert [path.name for path in (tmp_path / "results/deep").iterdir()] == ["a.ipynb"], "no partial copy is left"
    facts = json.loads((tmp_path / "facts.json").read_text())
    interpreter, package = os.path.abspath(sys.executable), str(ROOT / "ace/__init__.py")
    assert facts == [str(tmp_path / "notebooks"), interpreter, package, "1", "two words", 1e-3]


def test_a_failing_cell_is_one_line_and_the_partial_notebook_stays(tmp_path):
    source = tmp_path / "a.ipynb"
    error = (
        "class ConfigError(ValueError): pass\nif user:\n    raise ConfigError('params.yaml: x = -1: must be positive')"
    )
    write_notebook(source, "user = False", "print('before')", f"{error}\n1 / 0", "print('never')")
    result = stage(tmp_path, "a.ipynb", "-o", "out/a.ipynb")
    assert result.returncode == 1
    assert result.stderr == (
        "a.ipynb: cell 4 (class ConfigError(ValueError): pass): ZeroDivisionError: division by zero"
        " [partial notebook: out/a.failed.ipynb]\n"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.failed.ipynb"]
    assert "before" in (tmp_path / "out/a.failed.ipynb").read_text()
    result = stage(tmp_path, "a.ipynb", "-o", "out/a.ipynb", "-p", "user", "true")
    assert result.stderr.startswith("a.ipynb: params.yaml: x = -1: must be positive [")


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("from ace.config import load\nload('none.yaml')", "ConfigError: none.yaml does not exist"),
        ("from ace.report.runs import ReportError\nraise ReportError('no run')", "ReportError: no run"),
    ],
)
def test_an_error_written_for_users_is_one_line_in_the_notebook_too(tmp_path, cell, line):
    """What JupyterLab shows is what the kernel sends: here, what lies in the partial notebook."""
    write_notebook(tmp_path / "a.ipynb", "a = 1", cell)
    result = stage(tmp_path, "a.ipynb", "-o", "a.out.ipynb")
    assert result.stderr == f"a.ipynb: {line.partition(': ')[2]} [partial notebook: a.out.failed.ipynb]\n"
    cells = nbformat.read(tmp_path / "a.out.failed.ipynb", as_version=4).cells
    (error,) = [output for each in cells for output in each.get("outputs", []) if output.output_type == "error"]
    assert error.traceback == [line]


def test_notebook_03_shows_the_last_refinement_that_improved_and_streams_no_prompt(tmp_path, monkeypatch, capsys):
    """Its cell, run on a transcript: what is printed goes to the terminal of whoever runs the stage."""
    verdicts = {
        "first": "90 %, reward +0.500, original -1.000",
        "last": "95 %, reward -0.250, original -0.750",
        "within the margin": "99 %, reward +0.210, original +0.200",
        "as bad": "131 %, reward -1.000, original -1.000",
        "illegal": "illegal",
        "not asked": None,
    }
    records = [{"role": "actor", "prompt": f"task\n{k}", "reply": k, "verdict": v} for k, v in verdicts.items()]
    records.append({"role": "critic", "prompt": "judge", "reply": "good", "verdict": "adjusted"})
    with gzip.open(tmp_path / "transcript.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in [{"model": "toy"}, *records])
    cells = nbformat.read(ROOT / "notebooks/03_train.ipynb", as_version=4).cells
    (source,) = [cell.source for cell in cells if cell.cell_type == "code" and "read_transcript" in cell.source]
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    for margin, n_shown in ((0.02, 1), (9, 0)):
        displayed.clear()
        settings = SimpleNamespace(refine=SimpleNamespace(margin=margin))
        runs = {0: SimpleNamespace(folder=tmp_path)}
        exec(source, {"settings": settings, "runs": runs, "TRANSCRIPT": "transcript.jsonl.gz"})
        assert capsys.readouterr().out == "7 calls of the language model\n"
        assert len(displayed) == n_shown
        if displayed:
            assert "task\nlast\n" in displayed[0].data and verdicts["last"] in displayed[0].data


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_kill_9_of_a_stage_ends_its_kernel_and_the_workers(tmp_path):
    write_notebook(
        tmp_path / "a.ipynb",
        "n = 2",
        "import os, time\nfrom joblib import Parallel, delayed\n"
        "def work(i):\n    open(f'pid{i}', 'w').write(str(os.getpid()))\n    time.sleep(120)\n"
        "open('pid', 'w').write(str(os.getpid()))\nParallel(n)(delayed(work)(i) for i in range(n))",
    )
    files = [tmp_path / name for name in ("pid", "pid0", "pid1")]
    command = [sys.executable, "-m", "ace.pipeline.notebook", "a.ipynb", "-o", "out.ipynb"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENV) as process:
        limit = time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.2)
        pids = [int(file.read_text()) for file in files]
        assert len(set(pids)) == 3 and all(map(alive, pids))
        process.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 15
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not any(map(alive, pids))


# --- workspaces -------------------------------------------------------------------------------------------------------


PIPELINE = """
stages:
  digests:
    cmd: python -m ace.pipeline.digests
    deps: [ace, notebooks, params.yaml]
    outs: [{results/digests.json: {cache: false, persist: true}}]
  use:
    cmd: python -m ace.pipeline.notebook notebooks/a.ipynb -o a.ipynb && test -z "$FAIL"
    params: [seeds, {results/digests.json: [programs.a, cells.case14.sac]}]
    outs: [{used.txt: {cache: false}}]
"""
CELLS = """
stages:
  train:
    wdir: ..
    cmd: cp used.txt cell.txt
    deps: [used.txt]
    outs: [{cell.txt: {cache: false}}]
"""
NEEDED = ("pipeline", "config", "run_files.py", "pool.py")  # of ace, by the toy


@pytest.fixture
def project(tmp_path):
    """A repository in small: the real pipeline package, a toy module and two stages."""
    for name in NEEDED:
        source, target = ROOT / "ace" / name, tmp_path / "ace" / name
        for path in [source] if source.is_file() else source.glob("*.py"):
            to = target if source.is_file() else target / path.name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    (tmp_path / "ace/__init__.py").touch()
    (tmp_path / "ace/toy.py").write_text("x = 1\n")
    write_notebook(tmp_path / "notebooks/a.ipynb", "a = 1", "from ace.toy import x\nprint(x, file=open('../used.txt', 'w'))")
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / ".dvcignore").write_bytes((ROOT / ".dvcignore").read_bytes())
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small_params()))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_params(lambda raw: raw.update(scale="laptop"))))
    return tmp_path


def test_a_workspace_is_renewed_and_keeps_its_results(project):
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert (folder / ".venv").is_dir() and not (folder / workspace.PRETRAINED).is_symlink()
    assert (folder / "params.yaml").read_bytes() == (project / "small.yaml").read_bytes()
    assert "analytics = false" in (folder / ".dvc/config").read_text()
    (folder / "results").mkdir()
    (folder / "results/x.csv").write_text("1")
    before = (folder / "ace/toy.py").stat().st_mtime_ns

    (project / "notebooks/a.ipynb").rename(project / "notebooks/b.ipynb")
    (project / "small.yaml").write_text(yaml.safe_dump(small_params(lambda raw: raw.update(seeds=[2]))))
    (project / workspace.PRETRAINED).mkdir(parents=True)
    workspace.prepare("quick", project / "small.yaml", project)
    assert (folder / workspace.PRETRAINED).samefile(project / workspace.PRETRAINED), "where `make pretrained` left it"
    assert [path.name for path in (folder / "notebooks").iterdir()] == ["b.ipynb"]
    assert (folder / "results/x.csv").exists()
    assert (folder / "params.yaml").read_bytes() == (project / "small.yaml").read_bytes()
    assert (folder / "ace/toy.py").stat().st_mtime_ns == before, "what did not change is not written"
    with pytest.raises(repro.WorkspaceError, match=r"none\.yaml: no such file"):
        workspace.prepare("quick", project / "none.yaml", project)


def test_prose_makes_nothing_stale_code_does_and_failures_come_through(project, capsys, monkeypatch):
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert repro.repro(folder) == 0
    shown = capsys.readouterr().out
    assert "[1/2] digests | 0:" in shown and "[2/2] use | " in shown and "push" not in shown
    assert (folder / "used.txt").read_text() == "1\n"
    assert not list(folder.rglob(".gitignore")) or all(".dvc" in str(p) for p in folder.rglob(".gitignore"))

    (project / "ace/toy.py").write_text('"""Described at last."""\nx = 1  # one\n')
    workspace.prepare("quick", project / "small.yaml", project)
    assert repro.repro(folder) == 0
    shown = capsys.readouterr().out
    assert "[1/2] digests | " in shown and "[2/2] use: up to date" in shown

    (project / "ace/toy.py").write_text("x = 2\n")
    workspace.prepare("quick", project / "small.yaml", project)
    monkeypatch.setenv("FAIL", "yes")
    assert repro.repro(folder) != 0
    assert "failed to reproduce 'use'" in capsys.readouterr().out
    assert not (project / "used.txt").exists() and not (project / "dvc.lock").exists(), "the repository is untouched"


def test_at_another_scale_there_is_no_stage_of_what_was_measured_by_hand(tmp_path):
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    for place, there in ((ROOT / "profiles/paper/params.yaml", False), (ROOT / "params.yaml", True)):
        made = yaml.safe_load(workspace.pipeline_for(tmp_path, place))
        assert (workspace.BY_HAND in made["stages"]) == there


def test_a_scale_takes_committed_models_and_leaves_out_what_it_says(tmp_path):
    place = tmp_path / "profiles/quick/params.yaml"
    shutil.copytree(ROOT / "profiles/quick", place.parent)
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "results/language_model", tmp_path / "results/language_model")
    made = yaml.safe_load(workspace.pipeline_for(tmp_path, place))
    stages = made["stages"]
    assert not {"language_model", "language_model_table", "measure_rates"} & set(stages)
    assert {"10_table_main", "13_table_ablations"} <= set(stages["paper"]["foreach"]), "variants may be added there"
    assert "22_figure_shaping" not in stages["paper"]["foreach"]
    assert [*stages["show"]["foreach"]] == ["foresight"] and "measure_official_score" not in stages
    assert workspace.given(tmp_path, place) == [Path("results/language_model/wcci2020")]
    raw = yaml.safe_load(place.read_text())
    raw["language_model"]["steps"] = 10
    place.write_text(yaml.safe_dump(raw))
    with pytest.raises(workspace.WorkspaceError, match=r"pipeline\.yaml: given: language_model: language_model differs") as error:
        workspace.given(tmp_path, place)
    assert "\n" not in str(error.value)
    place.with_name("pipeline.yaml").write_text(f"without: [chronics, {workspace.BY_HAND}, claims, claims]\n")
    assert not {"chronics", workspace.BY_HAND, "claims"} & set(yaml.safe_load(workspace.pipeline_for(tmp_path, place))["stages"])
    for name in ("train", "paper@33_none", "nothing", "language_model@wcci2020"):
        place.with_name("pipeline.yaml").write_text(f"without: [{name}]\n")
        with pytest.raises(workspace.WorkspaceError, match=rf"pipeline\.yaml: {name}: no stage of dvc\.yaml"):
            workspace.pipeline_for(tmp_path, place)


WITH_WEEKS = """
stages:
  chronics:
    matrix: {env: [a]}
    cmd: exit 1
    outs: [{"results/chronics/${item.env}": {cache: false, persist: true}}]
  one:
    matrix: {env: [a]}
    cmd: cat results/chronics/${item.env}/w > one.txt
    deps: ["results/chronics/${item.env}"]
    outs: [{one.txt: {cache: false}}]
  two:
    cmd: cp one.txt two.txt
    deps: [one.txt]
    outs: [{two.txt: {cache: false}}]
"""


@pytest.fixture
def with_weeks(project):
    """The small repository with weeks, made and half-made, a stage that reads them and one that reads what that makes."""
    week = project / "results/chronics/a/w"
    week.parent.mkdir(parents=True)
    week.write_text("week")
    (project / "results/chronics/b.making").mkdir()
    (project / "results/chronics/b.making/w").touch()
    (project / "dvc.yaml").write_text(WITH_WEEKS)
    return project


def test_a_workspace_takes_the_weeks_as_they_are(with_weeks):
    folder = workspace.prepare("quick", with_weeks / "small.yaml", with_weeks)
    assert repro.stage_names(folder) == ["one@a", "two"], "it makes no weeks"
    assert repro.repro(folder) == 0
    assert [(folder / f"{name}.txt").read_text() for name in ("one", "two")] == ["week", "week"]
    assert [path.name for path in (folder / "results/chronics").iterdir()] == ["a"], "and no half-made ones"
    copied = (folder / "results/chronics/a/w").stat().st_mtime_ns
    (with_weeks / "results/chronics/a/more").touch()
    workspace.prepare("quick", with_weeks / "small.yaml", with_weeks)
    assert (folder / "results/chronics/a/more").exists()
    (with_weeks / "results/chronics/a/more").unlink()
    workspace.prepare("quick", with_weeks / "small.yaml", with_weeks)
    assert not (folder / "results/chronics/a/more").exists()
    assert (folder / "results/chronics/a/w").stat().st_mtime_ns == copied


def test_an_unpacked_archive_is_told_what_dvc_needs(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(repro.WorkspaceError, match=r"not a git repository.*no_scm = true"):
        repro.stage_names(tmp_path)


def test_with_targets_no_other_stage_is_run(with_weeks, capsys):
    folder = workspace.prepare("quick", with_weeks / "small.yaml", with_weeks)
    assert repro.repro(folder, ["one@a"]) == 0
    assert "[1/1] one@a" in capsys.readouterr().out and not (folder / "two.txt").exists()
    assert not (folder / "minutes.json").exists(), "which tells of all stages"


def test_weeks_that_would_be_made_without_the_generator_are_said_first(with_weeks, monkeypatch):
    shutil.copy(with_weeks / "small.yaml", with_weeks / "params.yaml")
    assert dvc(with_weeks, "init", "-q", "--no-scm").returncode == 0
    assert dvc(with_weeks, "commit", "-q", "-f", "chronics@a").returncode == 0
    found = []
    monkeypatch.setattr(workspace.importlib.util, "find_spec", lambda name: found.append(name) or None)
    workspace.check_weeks(with_weeks)
    (with_weeks / "results/chronics/a/w").write_text("another week")
    digests = b"{}\n"
    (with_weeks / "results/digests.json").write_bytes(digests)
    with pytest.raises(repro.WorkspaceError, match=r"weeks of a: .*`make weeks ENV=a`") as raised:
        workspace.check_weeks(with_weeks)
    assert "\n" not in str(raised.value) and set(found) == {"chronix2grid"}
    assert (with_weeks / "results/digests.json").read_bytes() == digests  # a refused run leaves it as it was
    monkeypatch.setattr(workspace.importlib.util, "find_spec", lambda name: name)
    workspace.check_weeks(with_weeks)


def test_an_empty_file_of_dvcs_locks_is_removed(tmp_path):
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    rwlock = tmp_path / ".dvc/tmp/rwlock"
    for text in ("{}", ""):
        rwlock.write_text(text)
        repro.repair_lock(tmp_path)
        assert rwlock.exists() == bool(text)


def test_a_lock_file_that_was_stopped_halfway_is_the_last_whole_one_again(project, monkeypatch, capfd):
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert repro.repro(folder) == 0
    lock, play = folder / "dvc.lock", repro._repro
    whole = lock.read_text()
    assert "halfway" not in capfd.readouterr().err

    def stopped(*_):
        lock.write_text(whole[: whole.index("  use:")])  # sound as YAML, with a stage less
        raise KeyboardInterrupt

    monkeypatch.setattr(repro, "_repro", stopped)
    with pytest.raises(KeyboardInterrupt):
        repro.repro(folder)
    assert lock.read_text() == whole and capfd.readouterr().err.count("halfway") == 1
    monkeypatch.setattr(repro, "_repro", play)
    for left in ("", whole[:-9]):  # by a kill that nobody was left to notice
        lock.write_text(left)
        assert repro.repro(folder) == 0 and lock.read_text() == whole
    assert "[2/2] use: up to date" in capfd.readouterr().out


def test_cells_lie_in_a_file_of_their_own_and_are_named_without_it(project, capfd):
    (project / "cells").mkdir()
    (project / "cells/dvc.yaml").write_text(CELLS)
    (project / "cells/dvc.lock").write_text("of the repository")
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert repro.stage_names(folder) == ["digests", "use", "train"]
    assert list(repro.addresses(folder, ["train", "use"])) == ["cells/dvc.yaml:train", "use"]
    assert repro.repro(folder) == 0 and "[3/3] train | 0:" in capfd.readouterr().out
    assert (folder / "cell.txt").read_text() == "1\n" and campaign.stale(folder, ["use", "train"]) == []
    (folder / "cell.txt").unlink()
    assert campaign.stale(folder, ["use", "train"]) == ["train"]
    assert repro.repro(folder, ["train"]) == 0 and "[1/1] train | 0:" in capfd.readouterr().out
    (folder / "cells/dvc.yaml").write_text(CELLS.replace("cmd:", "kommand:"))
    with pytest.raises(repro.WorkspaceError, match=r"cells/dvc\.yaml"):
        repro.stage_names(folder)
    (folder / "cells/dvc.yaml").write_text(CELLS)
    lock = folder / "cells/dvc.lock"
    whole = lock.read_text()
    lock.write_text(whole[:-9])
    repro.repair_lock(folder)
    assert lock.read_text() == whole and "cells/dvc.lock was stopped halfway" in capfd.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_sigterm_ends_dvc_the_stage_and_its_kernel_and_the_next_call_works(project):
    wait = "import os, time\nopen('../pid', 'w').write(f'{os.getpid()} {os.getppid()}')\n"
    wait += "time.sleep(120 if a else 0)\nopen('../used.txt', 'w')"
    write_notebook(project / "notebooks/a.ipynb", "a = 1", wait)
    folder = workspace.prepare("quick", project / "small.yaml", project)
    call = [sys.executable, "-c", "import sys\nfrom pathlib import Path\nfrom ace.pipeline import repro\nrepro.repro(Path('.'))"]
    with subprocess.Popen(call, cwd=folder, env=ENV, stdout=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 90
        while not (folder / "pid").exists() or not (folder / "pid").read_text():
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.2)
        kernel_pid, stage_pid = map(int, (folder / "pid").read_text().split())
        (dvc_pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        process.terminate()
        assert process.wait(30) != 0
    limit = time.monotonic() + 20
    while any(map(alive, (kernel_pid, stage_pid, dvc_pid))) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not [pid for pid in (kernel_pid, stage_pid, dvc_pid) if alive(pid)]
    write_notebook(project / "notebooks/a.ipynb", "a = 0", wait)
    workspace.prepare("quick", project / "small.yaml", project)
    assert repro.repro(folder) == 0


# --- what is looked at before DVC touches anything --------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    """make(params) -> what `make repro` gives: the whole package and the real Makefile, with one stage that has a result."""
    shutil.copytree(ROOT / "ace", tmp_path / "ace", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "requirements.lock", "pyproject.toml", ".dvcignore"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    stage = {"cmd": "echo 2 > used.txt", "params": ["seeds"], "outs": [{"used.txt": {"cache": False}}]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"use": stage}}))
    (tmp_path / "used.txt").write_text("1\n")
    tool = tmp_path / ".venv/bin/python"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    tool.chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    assert dvc(tmp_path, "init", "-q", "--no-scm").returncode == 0

    def make(change=None, target="repro"):
        raw = small_params(change)
        place = tmp_path / "params.yaml" if target == "repro" else tmp_path / f"profiles/{target}/params.yaml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(yaml.safe_dump(raw))
        return subprocess.run(["make", "--no-print-directory", target], cwd=tmp_path, capture_output=True, text=True)

    make.folder = tmp_path
    return make


def test_a_misspelt_key_ends_make_repro_and_make_quick_in_one_line(copied):
    misspell = lambda raw: raw["base"]["sac"].update(gama=raw["base"]["sac"].pop("gamma"))  # noqa: E731
    for target in ("repro", "quick"):
        done = copied(misspell, target)
        assert done.returncode != 0 and "base.sac.gama: no such parameter; did you mean 'gamma'?" in done.stderr
    assert (copied.folder / "used.txt").read_text() == "1\n" and not (copied.folder / "quick").exists()


def test_make_weeks_notes_the_digests_of_the_parameters_as_they_are(copied):
    (copied.folder / "params.yaml").write_text("months: 1\n")
    stages = {
        "digests": {"cmd": "cp params.yaml digests.yaml", "deps": ["params.yaml"], "outs": [{"digests.yaml": {"cache": False}}]},
        "chronics": {"matrix": {"env": ["a"]}, "cmd": "cp digests.yaml weeks.txt", "params": [{"digests.yaml": ["months"]}],
                     "outs": [{"weeks.txt": {"cache": False}}]},
    }  # fmt: skip
    (copied.folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (copied.folder / ".venv/bin/dvc").write_text(f'#!/bin/sh\nexec {sys.executable} -m dvc "$@"\n')
    (copied.folder / ".venv/bin/dvc").chmod(0o755)
    (copied.folder / ".venv/.generator").touch()
    assert dvc(copied.folder, "repro", "-q").returncode == 0
    (copied.folder / "params.yaml").write_text("months: 2\n")
    subprocess.run(["make", "weeks", "ENV=a"], cwd=copied.folder, capture_output=True, check=True)
    assert (copied.folder / "weeks.txt").read_text() == "months: 2\n"
    assert not dvc(copied.folder, "status", "-q").returncode, "and nothing is stale afterwards"


def test_make_repro_looks_for_server_checkpoint_and_days_before_dvc_deletes_outputs(copied):
    def change(raw):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            raw["variants"]["asks"] = {"llm": {"client": "server", "model": "m", "path": f"http://127.0.0.1:{free.getsockname()[1]}/v1"}}
        raw["variants"]["loads"] = {"llm": {"client": "checkpoint", "model": "../none", "path": ""}}
        raw["environments"]["case14"]["days"]["test"] = [99]
        raw["grid"]["variants"] += ["asks", "loads"]

    done = copied(change)
    assert done.returncode != 0 and "Running stage" not in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 3, done.stdout
    for words in ("server http://127.0.0.1", "checkpoint", "environment case14"):
        assert any(words in line for line in failed)
    assert "server" in failed[0], "what is known in seconds comes first"
    assert (copied.folder / "used.txt").read_text() == "1\n", "no result was touched"

    done = copied()
    assert done.returncode == 0 and (copied.folder / "used.txt").read_text() == "2\n", done.stdout + done.stderr
    assert "dvc push" not in done.stdout + done.stderr


def test_the_time_to_go_follows_what_was_measured():
    now = [0.0]
    clock = repro.Clock(["language_model@a", "train@a-x", "train@a-y"], now=lambda: now[0])
    plan, one = repro.expected_s("language_model@a"), repro.expected_s("train@a-x")
    assert clock.start("language_model@a", runs=True).startswith("[1/3] language_model@a | 0:00 elapsed")
    assert clock.to_go_s() == pytest.approx(plan + 2 * one)
    now[0] = plan / 2
    assert clock.to_go_s() == pytest.approx(plan / 2 + 2 * one), "it falls while a stage runs"
    now[0] = 3 * plan
    late = clock.to_go_s()
    assert late > 2 * one, "and a stage that takes longer is not done"
    now[0] = 4 * plan
    assert clock.to_go_s() > late, "the longer it takes, the longer all else will"
    now[0] = 3 * plan
    clock.start("train@a-x", runs=True)
    assert clock.to_go_s() == pytest.approx(2 * one * (3 * plan + 120) / (plan + 120))
    assert clock.start("train@a-y", runs=False) == "[3/3] train@a-y: up to date"
    assert clock.to_go_s() == 0
    other = repro.Clock(["train@a-x"], now=lambda: now[0], foretells=False)
    assert other.start("train@a-x", runs=True) == "[1/1] train@a-x | 0:00 elapsed", "no quick scale: days, not minutes"


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_the_kernel_groups_of_this_process_are_forgotten_once_ended():
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    kernel.OwnKernel.groups.add(sleeper.pid)
    kernel.OwnKernel.kill_groups()
    assert sleeper.wait(timeout=5) == -signal.SIGKILL
    kernel.OwnKernel.groups.add(sleeper.pid)  # already ended: no error
    kernel.OwnKernel.kill_groups()
    assert kernel.OwnKernel.groups == set()


def test_kernels_of_one_folder_have_sockets_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = kernel.OwnKernel(), kernel.OwnKernel()
    for manager in (one, other):
        manager.write_connection_file()
    assert one.ip != other.ip and Path(one.ip).is_absolute()
    folder = Path(one.ip).parent
    assert folder.is_dir() and not list(tmp_path.iterdir())
    one.sockets.cleanup()
    assert not folder.exists()
