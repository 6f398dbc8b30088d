"""Notebooks as stages, code without its prose, workspaces, and the declared pipeline."""

import ast
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ace.pipeline import code, kernel, notebook, workspace

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
    return subprocess.run([*workspace.dvc(), *arguments], cwd=folder, env=ENV, capture_output=True, text=True)


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


def test_notebook_03_shows_the_last_refinement_that_improved_and_streams_no_prompt(tmp_path):
    """Its cell, run as a stage on a transcript."""
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
    (source,) = [cell.source for cell in cells if cell.cell_type == "code" and "transcript" in cell.source]
    setting = "from pathlib import Path\nfrom types import SimpleNamespace as N\nfolders = [Path('.')]\n"
    write_notebook(tmp_path / "a.ipynb", "margin = 0.02", setting + "settings = N(refine=N(margin=margin))", source)
    displayed = {}
    for margin in ("0.02", "9"):
        result = stage(tmp_path, "a.ipynb", "-o", "out.ipynb", "-p", "margin", margin)
        assert (result.stdout, result.stderr) == ("7 calls of the language model\n", "")
        outputs = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[-1].outputs
        displayed[margin] = [each.data["text/markdown"] for each in outputs if each.output_type == "display_data"]
    (shown,) = displayed["0.02"]
    assert "task\nlast\n" in shown and verdicts["last"] in shown
    assert displayed["9"] == []


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


# --- code without prose -----------------------------------------------------------------------------------------------


def test_prose_and_layout_leave_no_trace_and_code_does():
    bare = "class A:\n    x: int\n\n    def f(self, a):\n        return {'k': a}\n\ndef g():\n    pass"
    told = '''"""Module."""
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
    assert code.without_prose(told) == code.without_prose(bare) == bare
    assert code.without_prose(bare.replace("'k'", "'j'")) != bare
    assert code.without_prose("x = '# no comment'\n") == "x = '# no comment'"
    ast.parse(code.without_prose("if a:\n    'text'\nelse:\n    'more'"))


def test_magics_become_comments_and_the_rest_stays_python():
    assert code.cell_code("%matplotlib inline\nx = 1  # note\nif x:\n    !ls\n") == (
        "# %matplotlib inline\n# !ls\npass\nx = 1\nif x:\n    pass"
    )
    assert code.cell_code("%%time\nx = 1") == "# %%time\npass\nx = 1"
    assert code.cell_code("%%bash\nls | wc") == "# %%bash\n# ls | wc"
    assert code.cell_code('text = """\n% not a magic\n"""').startswith("text = ")


def test_running_and_saving_a_notebook_changes_neither_its_code_nor_the_stripped_file(tmp_path):
    path = tmp_path / "n.ipynb"
    write_notebook(path, "a = 1  # of what", "# only a comment", "a + 1")
    code.extract_notebook(path, tmp_path / "code")
    clean, text = path.read_bytes(), (tmp_path / "code/n.py").read_text()
    assert text == "# %% [parameters]\na = 1\n\n# %%\na + 1\n"

    ran = nbformat.read(path, as_version=4)
    ran.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    ran.cells[3].outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=9)]
    ran.cells[3].execution_count = 9
    ran.cells[3].metadata = {"execution": {"iopub.status.busy": "2026"}, "collapsed": False}
    nbformat.write(ran, path)
    assert path.read_bytes() != clean
    code.extract_notebook(path, tmp_path / "code")
    assert path.read_bytes() == clean and (tmp_path / "code/n.py").read_text() == text

    before = path.stat().st_mtime_ns
    code.extract_notebook(path, tmp_path / "code")
    assert path.stat().st_mtime_ns == before, "nothing to change, nothing written"


def test_the_package_is_written_whole_and_stale_files_go(tmp_path):
    package = tmp_path / "ace"
    (package / "llm/prompts").mkdir(parents=True)
    (package / "__init__.py").write_text('"""Doc."""\n')
    (package / "llm/roles.py").write_text("x = 1  # one\n")
    (package / "llm/prompts/a.txt").write_text("# a prompt keeps its words\n")
    (package / "llm/__pycache__").mkdir()
    (package / "llm/__pycache__/roles.pyc").write_bytes(b"\0")
    target = tmp_path / "code"
    code.extract_package(package, target)
    files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert files == {
        "ace/__init__.py": "\n",
        "ace/llm/roles.py": "x = 1\n",
        "ace/llm/prompts/a.txt": "# a prompt keeps its words\n",
    }
    (package / "llm/prompts/a.txt").unlink()
    code.extract_package(package, target)
    assert not (target / "ace/llm/prompts").exists()


def test_code_errors_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "n.ipynb", "a = 1", "x = = 1")
    assert code.main(["n.ipynb"]) == 1
    assert capsys.readouterr().err == "n.ipynb: cell 3, line 1: invalid syntax\n"
    assert code.main(["nothing"]) == 1
    assert capsys.readouterr().err == "nothing: neither a notebook nor a package\n"
    write_notebook(tmp_path / "good.ipynb", "b = 2")
    assert code.main(["n.ipynb", "good.ipynb"]) == 1
    assert (tmp_path / "notebooks/code/good.py").is_file(), "one that fails keeps none of the others"
    assert code.main([]) == 1
    assert capsys.readouterr().err.endswith("no dvc.yaml here: run this in the repository's folder, or name what to read\n")
    (tmp_path / "dvc.yaml").write_text("stages: {code: {deps: [good.ipynb]}}")
    (tmp_path / "notebooks/code/gone.py").write_text("x = 1")
    assert code.main([]) == 0
    assert [path.name for path in (tmp_path / "notebooks/code").iterdir()] == ["good.py"], "and none that is not declared"


# --- workspaces -------------------------------------------------------------------------------------------------------


PIPELINE = """
stages:
  code:
    cmd: python -m ace.pipeline.code
    deps: [ace]
    outs: [{notebooks/code: {cache: false}}]
  use:
    cmd: cp notebooks/code/ace/toy.py used.txt && test -z "$FAIL"
    deps: [notebooks/code/ace/toy.py]
    params: [steps]
    outs: [{used.txt: {cache: false}}]
"""


@pytest.fixture
def project(tmp_path):
    """A repository in small: the real pipeline package, a toy module and two stages."""
    (tmp_path / "ace/pipeline").mkdir(parents=True)
    for path in (ROOT / "ace/pipeline").glob("*.py"):
        (tmp_path / "ace/pipeline" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "ace/__init__.py").touch()
    (tmp_path / "ace/toy.py").write_text("x = 1\n")
    write_notebook(tmp_path / "notebooks/a.ipynb", "a = 1")
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / ".dvcignore").write_bytes((ROOT / ".dvcignore").read_bytes())
    (tmp_path / "small.yaml").write_text("scale: quick\nsteps: 1\n")
    return tmp_path


def test_a_workspace_is_renewed_and_keeps_its_results(project):
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert (folder / "params.yaml").read_text() == "scale: quick\nsteps: 1\n"
    assert "analytics = false" in (folder / ".dvc/config").read_text()
    (folder / "results").mkdir()
    (folder / "results/x.csv").write_text("1")
    (folder / "notebooks/code").mkdir()
    (folder / "notebooks/code/a.py").write_text("a = 1")
    before = (folder / "ace/toy.py").stat().st_mtime_ns

    (project / "notebooks/a.ipynb").rename(project / "notebooks/b.ipynb")
    (project / "small.yaml").write_text("scale: quick\nsteps: 2\n")
    workspace.prepare("quick", project / "small.yaml", project)
    assert sorted(path.name for path in (folder / "notebooks").iterdir()) == ["b.ipynb", "code"]
    assert (folder / "results/x.csv").exists() and (folder / "notebooks/code/a.py").exists()
    assert "steps: 2" in (folder / "params.yaml").read_text()
    assert (folder / "ace/toy.py").stat().st_mtime_ns == before, "what did not change is not written"
    with pytest.raises(workspace.WorkspaceError, match=r"none\.yaml: no such file"):
        workspace.prepare("quick", project / "none.yaml", project)


def test_prose_makes_nothing_stale_code_does_and_failures_come_through(project, capsys, monkeypatch):
    folder = workspace.prepare("quick", project / "small.yaml", project)
    assert workspace.repro(folder) == 0
    shown = capsys.readouterr().out
    assert "[1/2] code | 0:" in shown and "[2/2] use | " in shown
    assert (folder / "used.txt").read_text() == "x = 1\n"
    assert not list(folder.rglob(".gitignore")) or all(".dvc" in str(p) for p in folder.rglob(".gitignore"))

    (project / "ace/toy.py").write_text('"""Told at last."""\nx = 1  # one\n')
    workspace.prepare("quick", project / "small.yaml", project)
    assert workspace.repro(folder) == 0
    shown = capsys.readouterr().out
    assert "[1/2] code | " in shown and "[2/2] use: up to date" in shown

    (project / "ace/toy.py").write_text("x = 2\n")
    workspace.prepare("quick", project / "small.yaml", project)
    monkeypatch.setenv("FAIL", "yes")
    assert workspace.repro(folder) != 0
    assert "failed to reproduce 'use'" in capsys.readouterr().out
    assert not (project / "used.txt").exists() and not (project / "dvc.lock").exists(), "the repository is untouched"


MISSPELT = "params.yaml: base.sac.gama: no such parameter; did you mean 'gamma'?"


@pytest.fixture
def misspelt(project):
    """The toy repository with the real check of parameters, and a key that is wrong in both scales' files."""
    (project / "ace/config").mkdir()
    for name in ("checked.py", "config/__init__.py", "config/settings.py"):
        (project / "ace" / name).write_bytes((ROOT / "ace" / name).read_bytes())
    wrong = (ROOT / "profiles/quick/params.yaml").read_text().replace("    gamma:", "    gama:")
    (project / "profiles/quick").mkdir(parents=True)
    for path in (project / "profiles/quick/params.yaml", project / "params.yaml"):
        path.write_text(wrong)
    return project


def test_quick_checks_the_parameters_before_anything_is_touched(misspelt):
    with pytest.raises(workspace.WorkspaceError) as raised:
        workspace.run("quick", misspelt)
    assert str(raised.value).startswith(f"profiles/quick/{MISSPELT}") and "\n" not in str(raised.value)
    assert not (misspelt / "quick").exists()


def test_make_repro_checks_the_parameters_before_dvc_deletes_outputs(misspelt):
    """The real Makefile; in place of DVC a script that only says that it was started."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (misspelt / name).write_bytes((ROOT / name).read_bytes())
    for name, line in (("python", f'exec {sys.executable} "$@"'), ("dvc", 'echo started "$@"')):
        tool = misspelt / ".venv/bin" / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(f"#!/bin/sh\n{line}\n")
        tool.chmod(0o755)
    (misspelt / ".venv/.installed").touch()
    result = subprocess.run(["make", "repro"], cwd=misspelt, capture_output=True, text=True)
    assert result.returncode != 0 and "started" not in result.stdout
    assert result.stderr.startswith(MISSPELT)
    assert [line for line in result.stderr.splitlines()[1:] if not line.startswith("make")] == []

    params = misspelt / "params.yaml"
    params.write_text(params.read_text().replace("    gama:", "    gamma:"))
    result = subprocess.run(["make", "repro"], cwd=misspelt, capture_output=True, text=True)
    assert result.returncode == 0 and "started repro" in result.stdout, result.stderr


def test_the_time_to_go_follows_what_was_measured():
    now = [0.0]
    clock = workspace.Clock(["language_model@a", "train@a-x", "train@a-y"], now=lambda: now[0])
    plan, one = workspace.expected_s("language_model@a"), workspace.expected_s("train@a-x")
    assert clock.start("language_model@a", runs=True).startswith("[1/3] language_model@a | 0:00 elapsed")
    assert clock.to_go_s() == pytest.approx(plan + 2 * one)
    now[0] = 3 * plan
    clock.start("train@a-x", runs=True)
    assert clock.to_go_s() == pytest.approx(2 * one * (3 * plan + 120) / (plan + 120))
    assert clock.start("train@a-y", runs=False) == "[3/3] train@a-y: up to date"
    assert clock.to_go_s() == 0
    other = workspace.Clock(["train@a-x"], now=lambda: now[0], foretells=False)
    assert other.start("train@a-x", runs=True) == "[1/1] train@a-x | 0:00 elapsed", "no quick scale: days, not minutes"


# --- the declared pipeline --------------------------------------------------------------------------------------------


def declared():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {name: {**stage, **stage.get("do", {})} for name, stage in stages.items()}


def test_every_out_is_kept_in_git_and_none_in_a_cache():
    for name, each in declared().items():
        for out in [*each["outs"], *each.get("metrics", [])]:
            assert isinstance(out, dict) and all(options["cache"] is False for options in out.values()), name


def test_the_code_of_every_notebook_is_written():
    listed = set(declared()["code"]["deps"]) - {"ace"}
    used = {word for each in declared().values() for word in each["cmd"].split() if word.startswith("notebooks/")}
    assert listed == used
    present = {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert present <= listed
    assert code.declared(ROOT / "dvc.yaml")[0] == Path("ace") and len(code.declared(ROOT / "dvc.yaml")) == 1 + len(
        listed
    )


# Imported by ace/experiment.py for the other kind of run: no result of this kind goes through it.
NOT_OF_THIS_KIND = {
    "baseline": {"ace.coevolve", "ace.checkpoint", "ace.rl", "ace.llm"},
    "train": {"ace.baselines"},
    "ablation": {"ace.baselines"},
    "other_model": {"ace.baselines"},
    "lm_baseline": {"ace.coevolve", "ace.checkpoint", "ace.rl"},
}


def imported_modules(name, stop):
    """All modules of ace that `name` (a module, or source text) brings in."""
    found, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        path = ROOT / Path(*module.split("."))
        path = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if module in found or not path.is_file() or any(f"{module}.".startswith(f"{s}.") for s in stop):
            continue
        found.add(module)
        waiting += imported_names(path.read_text(encoding="utf-8"))
    return found - {"ace"}


def imported_names(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("ace"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ace":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", [n for n in declared() if n != "code"])
def test_a_stage_depends_on_all_code_that_it_runs(name):
    """A module that is imported and not declared would let a stale result pass for a fresh one."""
    each = declared()[name]
    source = ROOT / next(word for word in each["cmd"].split() if word.startswith("notebooks/"))
    if not source.is_file():
        pytest.skip(f"{source.name} does not exist yet")
    program = code.notebook_code(nbformat.read(source, as_version=4))
    # How a stage's own pictures look is no result: a new line colour must not retrain anything.
    looks = set() if any(dep.endswith("/ace/report") for dep in each["deps"]) else {"ace.report.style"}
    stop = NOT_OF_THIS_KIND.get(name, set()) | looks
    needed = set().union(*(imported_modules(module, stop) for module in imported_names(program)))
    deps = [dep.removeprefix("notebooks/code/") for dep in each["deps"] if dep.startswith("notebooks/code/ace")]
    missing = {
        module
        for module in needed
        if not any(f"{module.replace('.', '/')}{end}".startswith(dep) for dep in deps for end in (".py", "/"))
    }
    assert missing == set()
    assert f"notebooks/code/{source.stem}.py" in each["deps"]


def test_dvc_reads_the_pipeline_and_names_a_cell_as_the_readme_does(tmp_path):
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    assert dvc(tmp_path, "init", "-q", "--no-scm").returncode == 0
    listed = dvc(tmp_path, "stage", "list", "--name-only")
    assert listed.returncode == 0, listed.stderr
    grid = yaml.safe_load((ROOT / "params.yaml").read_text())["grid"]
    cells = {f"train@{env}-{variant}" for env in grid["environments"] for variant in grid["variants"]}
    cells |= {f"baseline@{env}-{variant}" for env in grid["environments"] for variant in grid["baselines"]}
    names = set(listed.stdout.split())
    cells |= {f"lm_baseline@{env}-{variant}" for env in grid["environments"] for variant in grid["lm_baselines"]}
    assert {name for name in names if name.startswith(("train@", "baseline@", "lm_baseline@"))} == cells
    assert {"claims", "table_main", "code"} <= names


def test_analytics_and_update_checks_are_off():
    config = (ROOT / ".dvc/config").read_text()
    assert "analytics = false" in config and "check_update = false" in config


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
