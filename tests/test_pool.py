"""The pool: loky and a Dask cluster give the same bytes, a worker that is killed costs nothing but time, mistakes are one line.

And campaigns: what is finished waits for its cell, and is collected without being computed again.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params

from ace import config, experiment, pool
from ace.pipeline import kernel
from ace.run_files import FINISHED, cell_folder, read_cell

SEEDS = [0, 1, 2, 3]
SETTINGS = {**kernel.environment(), "ACE_JOBS": "2"}
CLUSTER = """
import os, sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def run(folder, seeds=SEEDS, **more):
    code = f"from ace.experiment import run_cell; run_cell('case14', 'sac', {seeds})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env={**SETTINGS, **more}, text=True, stderr=subprocess.PIPE)


def ended(process):
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 0, said
    return said


def results(folder):
    """Bytes of all files of the cell."""
    place = cell_folder(folder / "results", "case14", "sac")
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def short(raw):
    raw["seeds"] = SEEDS
    raw["base"]["train"].update(decisions=100, validate_every=50)


def of_seed(folder, seed):
    run = read_cell(cell_folder(folder / "results", "case14", "sac"))[seed]
    return run.manifest, run.episodes, run.training, (run.folder / "policy.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A campaign of this process alone, whose runs wait for their cells."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "params.yaml").write_text(yaml.safe_dump(small_params(short)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACE_JOBS", "1")
        runs = [("case14", "reconnect", 0), *(("case14", "sac", seed) for seed in reversed(SEEDS))]
        experiment.run_seeds(runs, "results", "campaign")
        assert not (folder / "results").exists()
        patch.setattr(experiment, "Run", None)
        patch.setattr(pool, "finished", None)
        experiment.run_cell("case14", "sac", SEEDS)
    return folder


@contextmanager
def cluster(folder, **more):
    """The address of a Dask scheduler with two workers, each a process with one thread."""
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, env={**SETTINGS, **more}, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)


def in_the_middle(folder, process):
    """Waits until some run has trained a while and is not at its end."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None:
        for file in (folder / "checkpoints/results/case14/sac").glob("seed=*/progress"):
            if 25 <= int(file.read_text().split()[0]) <= 80:
                return
        time.sleep(0.005)
    raise AssertionError("no run was met in its middle")


def children(pid):
    """Workers of a main process."""
    found = {int(each) for task in Path(f"/proc/{pid}/task").glob("*/children") for each in task.read_text().split()}
    return sorted(each for each in found if "LokyProcess" in Path(f"/proc/{each}/cmdline").read_text())


def test_a_dask_cluster_gives_the_bytes_of_loky_also_when_a_worker_is_killed(undisturbed, workspace, tmp_path):
    folder = workspace(short)
    with cluster(tmp_path) as address:
        import distributed

        with distributed.Client(address, set_as_default=False) as client:
            process = run(folder, ACE_BACKEND="dask", ACE_DASK=address)
            in_the_middle(folder, process)
            pids = client.run(os.getpid)
            busy = next(worker for worker, tasks in client.processing().items() if tasks)
            os.kill(pids[busy], signal.SIGKILL)
            ended(process)
            assert pids[busy] not in client.run(os.getpid).values()
    assert results(folder) == results(undisturbed)


def test_a_killed_worker_of_loky_is_said_and_its_seed_run_again(undisturbed, workspace):
    """What its process has run before changes no byte of a seed: undisturbed, one process ran all four, the last first."""
    folder = workspace(short)
    process = run(folder, [0, 1])
    in_the_middle(folder, process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    assert ended(process).count("a worker died; what was not finished") == 1
    for seed in (0, 1):
        assert of_seed(folder, seed) == of_seed(undisturbed, seed)


def test_runs_that_wait_are_collected_and_not_computed(undisturbed):
    assert set(read_cell(cell_folder(undisturbed / "results", "case14", "sac"))) == set(SEEDS)
    waiting = experiment.scratch_folder(undisturbed, "results", "case14", "reconnect") / "seed=0"
    assert (waiting / FINISHED / experiment.STAMP).exists(), "nobody has asked for this cell yet"
    scratch = experiment.scratch_folder(undisturbed, "results", "case14", "sac")
    assert not list(scratch.glob(f"seed=*/{FINISHED}")) and not list(scratch.glob("seed=*/state.pt"))


def test_a_finished_run_of_other_settings_is_discarded(workspace, monkeypatch, capsys):
    folder = workspace(lambda raw: raw["grid"].update(variants=["ace"]))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    experiment.run_seeds([("case14", "reconnect", 0)], "results", "campaign")
    finished = experiment.scratch_folder(folder, "results", "case14", "reconnect") / "seed=0" / FINISHED
    before = (finished / experiment.STAMP).read_text()
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("test: 3", "test: 2"))
    assert text != (folder / "params.yaml").read_text()
    experiment.run_seeds([("case14", "reconnect", 0)], "results", "campaign")
    assert "run again" in capsys.readouterr().out
    assert (finished / experiment.STAMP).read_text() != before and len(read_cell(finished)[0].of_split("test")) == 2
    (finished / experiment.STAMP).unlink()  # killed before its last file was written
    experiment.run_seeds([("case14", "reconnect", 0)], "results", "campaign")
    assert (finished / experiment.STAMP).exists()


# --- the pool alone ---------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_tasks(monkeypatch):
    monkeypatch.setenv("ACE_JOBS", "2")
    assert pool.run(pow, [(2, 3), (3, 2), (5, 1)]) == [8, 9, 5]


def test_a_task_that_ends_its_worker_each_time_ends_the_pool(monkeypatch, capsys):
    monkeypatch.setenv("ACE_JOBS", "2")
    monkeypatch.setattr(pool, "DEATHS", 2)
    with pytest.raises(pool.PoolError, match="workers died 2 times in a row"):
        pool.run(os._exit, [(1,), (2,)])
    assert capsys.readouterr().err.count("started again") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ACE_BACKEND": "dsk"}, ["ACE_BACKEND = 'dsk'", "loky, dask", "did you mean dask"]),
        ({"ACE_BACKEND": "dask"}, ["ACE_DASK", "tcp://host:8786"]),
        ({"ACE_BACKEND": "dask", "ACE_DASK": "tcp://127.0.0.1:9"}, ["127.0.0.1:9", "no Dask scheduler answers"]),
        ({"ACE_BACKEND": "dask", "ACE_DASK": "nonsense://"}, ["nonsense", "no Dask scheduler answers"]),
    ],
)
def test_a_pool_that_cannot_be_used_is_one_line(monkeypatch, settings, words):
    for name in ("ACE_BACKEND", "ACE_DASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pool, "ANSWERS_S", 1)
    with pytest.raises(config.ConfigError) as error:
        pool.check()
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), error.value


def test_a_dask_worker_of_another_version_is_refused_before_any_work(workspace, tmp_path):
    folder = workspace()
    subprocess.run(["cp", "-r", str(ROOT / "ace"), str(tmp_path / "ace")], check=True)
    with (tmp_path / "ace" / "coevolve.py").open("a") as file:
        file.write("OTHER = True\n")
    with cluster(tmp_path, PYTHONPATH=str(tmp_path)) as address:
        code = "from ace import config, pool\ntry: pool.check()\nexcept config.ConfigError as error: print(error)"
        told = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
                              env={**SETTINGS, "ACE_BACKEND": "dask", "ACE_DASK": address}).stdout  # fmt: skip
    assert told.count("\n") == 1 and "code of ace is" in told


@pytest.mark.parametrize("name", ["processor", "OMP_NUM_THREADS"])
def test_a_worker_with_another_processor_or_other_settings_is_refused(name):
    ours = pool.identity()
    pool._compare("worker", ours, ours)
    with pytest.raises(pool.PoolError, match=f"worker a: {name} is Other, here"):
        pool._compare("worker a", {**ours, name: "Other"}, ours)


def test_what_workers_are_compared_in_is_what_the_kernel_sets():
    looks = {"TOKENIZERS_PARALLELISM", "PYTHONHASHSEED", "SOURCE_DATE_EPOCH", "DVC_NO_ANALYTICS", "JUPYTER_PREFER_ENV_PATH"}
    assert set(pool.DECISIVE) == {*kernel.SETTINGS, *kernel.SETTINGS_X86} - looks


def test_workers_end_soon_after_a_main_process_that_was_killed(tmp_path):
    begun = [tmp_path / name for name in ("a", "b")]
    task = "open({!r}, 'w').close(), __import__('time').sleep(300)"
    code = f"from ace import pool; pool.run(eval, {[(task.format(str(path)),) for path in begun]})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=SETTINGS)
    limit = time.monotonic() + 60
    while not all(path.exists() for path in begun) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.1)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    limit = time.monotonic() + 15
    while any(map(_lives, workers)) and time.monotonic() < limit:
        time.sleep(0.1)
    left = [pid for pid in workers if _lives(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(workers) == 2 and not left


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_of_a_caller_without_settings_have_one_thread(workspace):
    code = "import os; from ace import pool; print(pool.run(os.getenv, [('OMP_NUM_THREADS',), ('NUMEXPR_NUM_THREADS',)]))"
    bare = {name: value for name, value in SETTINGS.items() if name not in pool.DECISIVE}
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace(), env=bare, capture_output=True, text=True)
    assert done.stdout == "['1', '1']\n", done.stderr
