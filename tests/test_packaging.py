"""The lock, environment.yml, pyproject.toml and the Makefile say the same, and the environment is what they say."""

import ast
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ace import config
from ace.chronics.cases import GENERATOR_VERSION, INSTALL
from ace.pipeline import kernel

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)$")


def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_holds_exact_pins_and_nothing_else():
    # No `+cpu`, no address, no option, no hash: the same file must serve every index and platform.
    assert [line for line in pins() if not PIN.match(line)] == []
    names = [canonicalize_name(PIN.match(line)[1]) for line in pins()]
    assert names == sorted(set(names))
    assert not [name for name in names if name.startswith(("nvidia", "triton", "cuda"))]
    assert {"setuptools", "wheel"} <= set(names), "needed by `pip install --no-build-isolation -e .`"


def test_environment_yml_holds_the_pins_of_the_lock():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["channels"] == ["conda-forge"]
    plain = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert "python=3.11" in plain
    assert pip == pins()


def test_the_lock_satisfies_the_project_and_all_that_it_needs():
    """Walks from the project's dependencies through the installed metadata: whatever is reached is in the lock."""
    locked = {canonicalize_name(PIN.match(line)[1]): PIN.match(line)[2] for line in pins()}
    waiting = [Requirement(text) for text in [*project()["dependencies"], *project()["optional-dependencies"]["dask"]]]
    seen = set()
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        assert name in locked, f"{name} is needed and not in requirements.lock"
        assert needed.specifier.contains(locked[name], prereleases=True), f"{needed} against {locked[name]}"
        for extra in {"", *needed.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in importlib.metadata.requires(name) or []:
                child = Requirement(text)
                # torch from PyPI names its CUDA packages for Linux; which build is taken is the index's choice
                cuda = name == "torch" and canonicalize_name(child.name).startswith(("nvidia", "triton", "cuda"))
                if not cuda and (child.marker is None or child.marker.evaluate({"extra": extra})):
                    waiting.append(child)


def test_what_is_installed_is_what_is_locked():
    wrong = []
    for line in pins():
        name, version = PIN.match(line).groups()
        installed = importlib.metadata.version(name).partition("+")[0]
        if installed != version:
            wrong.append(f"{name}: {installed} installed, {version} locked")
    assert wrong == []


def test_everything_that_is_imported_is_a_declared_dependency():
    declared = {canonicalize_name(Requirement(text).name) for text in project()["dependencies"]}
    of_module = importlib.metadata.packages_distributions()
    files = [path for folder in ("ace", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    imported = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    ours = {"ace", "tests", "benchmarks"} | {path.stem for path in (ROOT / "tests").glob("*.py")}
    # The peers that `make bench` compares with and the generator of weeks are extras, and not installed by `make setup`.
    extra = {
        Requirement(text).name.lower().replace("-", "_")
        for name in ("bench", "weeks", "dask")
        for text in project()["optional-dependencies"][name]
    }
    foreign = imported - set(sys.stdlib_module_names) - ours - extra
    missing = {
        module: sorted(of_module.get(module, ["not installed"]))
        for module in foreign
        if not declared & {canonicalize_name(name) for name in of_module.get(module, [])}
    }
    assert missing == {}


def test_the_package_ships_all_of_its_files():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {path for name, globs in declared.items() for glob in globs for path in (ROOT / name.replace(".", "/")).glob(glob)}
    files = {path for path in (ROOT / "ace").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == shipped
    folders = {path.parent for path in (ROOT / "ace").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_makefile_and_kernel_force_the_same_settings():
    exported = dict(re.findall(r"^export (\w+) [:?]= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    exported.pop("PATH")
    assert exported == {**kernel.SETTINGS, **kernel.SETTINGS_X86, **kernel.DEFAULTS}


def test_the_settings_reach_a_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    env = kernel.environment()
    assert env["OMP_NUM_THREADS"] == "1", "bytes depend on it: forced"
    assert env["HF_HUB_OFFLINE"] == "0", "a caller may look for a checkpoint"
    if platform.machine() == "x86_64":
        code = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
        shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert shown.stdout.split() == ["AVX2", "1"]


def test_make_lint_has_nothing_to_say():
    places = [place for place in ("ace", "tests", "notebooks", "benchmarks") if (ROOT / place).is_dir()]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *places]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_make_setup_says_what_is_missing(tmp_path):
    """Without any Python of 3.11 or later on the PATH: one line and a non-zero exit."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "make", "uname", "awk", "grep"):
        found = subprocess.run(["bash", "-c", f"command -v {tool}"], capture_output=True, text=True, check=True)
        (tools / tool).symlink_to(found.stdout.strip())
    result = subprocess.run(
        [tools / "make", "setup"], cwd=tmp_path, env={"PATH": str(tools)}, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert result.stderr.splitlines()[0] == "make setup: Python 3.11 or newer is needed and none was found on the PATH"
    assert not (tmp_path / ".venv").exists()


PIP = '''#!/bin/sh
test "$3" = --version && exit
test "$3" = install || exit 3
echo "WARNING: Location 'x' is ignored" >&2
echo "ERROR: of $4" >&2
echo "Collecting numpy==2 (from -r requirements.lock (line 1))"
echo "Using cached numpy"
n=0; until test -e seen || test $n = 300; do sleep 0.1; n=$((n + 1)); done
exit $(cat code)
'''


@pytest.mark.parametrize("code", [0, 1])
def test_make_setup_shows_progress_as_it_happens_and_only_what_matters(tmp_path, code):
    """With a pip that goes on only once its first line was seen."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(PIP)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    (tmp_path / "code").write_text(str(code))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(["make", "-s", "setup"], cwd=tmp_path, **pipes) as process:
        begin = time.monotonic()
        shown = [process.stdout.readline(), process.stdout.readline()]
        assert time.monotonic() - begin < 20, "held back until the end"
        (tmp_path / "seen").touch()
        rest, errors = process.communicate()
    assert shown[0].startswith("setup: installing") and shown[1] == "  Collecting numpy==2\n"
    assert "ERROR: of --disable-pip-version-check" in errors and "WARNING" not in errors
    assert (process.returncode == 0) == (code == 0) == (tmp_path / ".venv/.installed").exists()
    assert rest.endswith("setup: done\n") == (code == 0), "a pip that failed ends it"


def test_the_generator_is_pinned_alike_everywhere():
    (pin,) = project()["optional-dependencies"]["weeks"]
    assert pin == f"Chronix2Grid=={GENERATOR_VERSION}" and f"pip install --no-deps {pin}" == INSTALL
    assert INSTALL in (ROOT / "environment.yml").read_text()
    assert not [line for line in pins() if line.lower().startswith("chronix")], "optional: the lock is what everybody installs"


GENERATOR_PIP = '''#!/bin/sh
echo "$@" >> asked
exit $(cat code)
'''


@pytest.mark.parametrize("code", [0, 1])
def test_tests_run_with_the_generator_or_without_it(tmp_path, code):
    """`make test` installs it; where that fails it says so in one line and goes on, and `make weeks` ends."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text(GENERATOR_PIP)
    (tools / "dvc").write_text('#!/bin/sh\necho "$@" >> dvc_asked\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    (tmp_path / "code").write_text(str(code))
    (tmp_path / ".venv/.installed").touch()
    made = subprocess.run(["make", "-s", ".venv/.generator"], cwd=tmp_path, capture_output=True, text=True)
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("-m pip install") and f"--no-deps Chronix2Grid=={GENERATOR_VERSION}" in asked
    assert made.returncode == 0 and len(made.stderr.splitlines()) == code
    assert (tmp_path / ".venv/.generator").exists() == (code == 0)
    weeks = subprocess.run(["make", "-s", "weeks", "ENV=wcci2022"], cwd=tmp_path, capture_output=True, text=True)
    assert (weeks.returncode == 0) == (code == 0) == (tmp_path / "dvc_asked").exists()
    assert code or (tmp_path / "dvc_asked").read_text().split()[-1] == "chronics@wcci2022"
    dry = subprocess.run(["make", "-n", "test"], cwd=tmp_path, capture_output=True, text=True)
    assert ("Chronix2Grid" in dry.stdout) == (code == 1), "installed once; tried again where it did not install"


def test_the_grids_of_make_weeks_are_those_with_weeks():
    environments = config.load(ROOT / "params.yaml").environments
    env = {**os.environ, "ENV": "/a/login/script"}  # as some clusters set it
    shown = subprocess.run(["make", "-n", "weeks"], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"chronics@(\w+)", shown)) == {name for name, each in environments.items() if each.weeks}
