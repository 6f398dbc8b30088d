"""What several test files need: small worlds, and a workspace of its own with a trained tiny language model."""

import contextlib
import copy
import dataclasses
import functools
import io
import multiprocessing
import os
import shutil
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from grid2op.Backend import pandaPowerBackend
from grid2op.Environment.baseEnv import BaseEnv

from ace import config, experiment
from ace.grid import environment
from ace.grid.environment import World
from ace.grid.packaged import read_packaged

ROOT = Path(__file__).parent.parent

# An environment that is collected closes parts of it twice, which raises amid whatever runs just then: `ast` gives up over it.
BaseEnv.__del__ = lambda env: None

# Of the second that an environment takes to make, 0.7 s read the grid's file, which is the same each time; so are its days.
_grid = functools.cache(pandaPowerBackend.pp.from_json)
pandaPowerBackend.pp.from_json = lambda path: copy.deepcopy(_grid(path))


@functools.cache
def _days(name):
    source = read_packaged(name)
    for field in dataclasses.fields(source)[1:]:
        getattr(source, field.name).setflags(write=False)  # all worlds of a process share them
    return source


environment.read_packaged = _days


@functools.cache
def _parsed(name):
    return yaml.safe_load((ROOT / name).read_text())


def parsed(name):
    """A YAML file of the project, read once: the caller may change what it gets."""
    return copy.deepcopy(_parsed(name))


def whole_grid(raw):
    """raw, the parameters as a dict, with the campaign's whole grid, of which params.yaml lists what is finished."""
    raw["grid"] = parsed("tests/whole_grid.yaml")["grid"]
    return raw


@pytest.fixture(scope="session")
def params():
    return config.load(ROOT / "params.yaml")


@pytest.fixture(scope="session")
def whole_params():
    raw = whole_grid(parsed("params.yaml"))
    return config.validated(config.Params, raw, "", "params.yaml")


@pytest.fixture(scope="session")
def small_world(params):
    """14 substations, 178 actions, short and hard episodes."""
    spec = params.environment("case14").model_copy(update={"horizon": 96, "thermal_factor": 0.7})
    return World(spec, params.scenarios, params.settings("reconnect").operator)


def small_params(change=None):
    """The laptop's params.yaml cut down to a run of seconds on case14, as a dict."""
    raw = parsed("params.yaml")
    raw["scale"], raw["seeds"] = "quick", [0]
    raw["grid"] = {"environments": ["case14"], "variants": ["sac", "ace"], "baselines": ["reconnect", "greedy"],
                   "lm_baselines": [], "other_model": [], "more_seeds": {"seeds": [], "variants": []},
                   "ablations": {"environment": "case14", "seeds": [0], "variants": []},
                   "kept": {"variants": ["ace", "sac"], "seeds": [0, 1, 2, 3]}, "one_run": [],
                   "also": {"environments": [], "variants": [], "controls": []},
                   "pretrained": {"environments": [], "seeds": [0], "variants": []},
                   "budget": {"environments": [], "seeds": [0], "variants": []}}  # fmt: skip
    raw["language_models"] = {}
    raw["environments"]["case14"].update(horizon=96, thermal_factor=0.7)
    raw["scenarios"].update(train=20, validation=2, test=3, repeats=1, test_split="development_test")
    base = raw["base"]
    base["train"].update(decisions=160, warmup=20, validate_every=60, batch_size=16)
    base["refine"].update(every=8, minibatch=32, max_cases=4, rounds=2, threshold=0.3)
    base["shape"].update(start=0.2, every=1, threshold=0.2)
    base["finetune"].update(every=3, samples=8)
    base["buffers"].update(capacity_rl=400, capacity_llm=100)
    base["also"].update(every=40, candidates=1, decisions=20, margin=0.0)
    if change:
        change(raw)
    grid = raw["grid"]
    run = [*grid["baselines"], *grid["lm_baselines"], *grid["variants"], *grid["ablations"]["variants"]]
    for study in config.STUDIES:
        raw[study]["variants"] = [variant for variant in raw[study]["variants"] if variant in run]
    return raw


@pytest.fixture
def workspace(tmp_path):
    """make(change) -> folder: a workspace with params.yaml on case14."""

    def make(change=None, name="ws"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "params.yaml").write_text(yaml.safe_dump(small_params(change)))
        return folder

    return make


def copy_tree(source, target):
    shutil.copytree(source, target, dirs_exist_ok=True)


def there(folder, settings, do, *arguments):
    """In a process of its own: with these values of `ace.experiment` do this in a folder."""
    os.chdir(folder)
    for name, value in settings.items():
        setattr(experiment, name, value)
    do(*arguments)


def started(folder, settings, do, *arguments):
    """A process that does this in a folder (`there`), forked from a server that has imported all and has no thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ace.experiment", "transformers.models.qwen2.modeling_qwen2", "peft"])
    process = context.Process(target=there, args=(folder, settings, do, *arguments), daemon=True)
    process.start()
    return process


def run(folder, variant, seeds=None):
    """`run_cell` in this process, which has loaded all and made the grid: that changes no byte (tests/test_pool.py)."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    said = contextlib.redirect_stdout(out), contextlib.redirect_stderr(error)
    with contextlib.chdir(folder), said[0], said[1], pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACE_JOBS", "1")
        try:
            experiment.run_cell("case14", variant, seeds)
        except Exception:
            traceback.print_exc()
            code = 1
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=error.getvalue())
