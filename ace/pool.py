"""Where tasks run: processes of this machine, or the workers of a cluster, by joblib's backends.

ACE_BACKEND: loky (the default: ACE_JOBS processes here) or dask (at the scheduler ACE_DASK).
A result must not depend on where it was made, so a worker that differs from its caller in what decides bytes is refused; and
a worker that dies costs no more than the time since the last checkpoint of its run: the run is started again elsewhere.
"""

import difflib
import functools
import hashlib
import os
import platform
import sys
import threading
import time
import uuid
from pathlib import Path

import joblib
import numpy as np
from joblib.externals.loky.process_executor import BrokenProcessPool
from tqdm import tqdm

from ace import config
from ace.config.files import written_whole
from ace.config.host import processor, versions

BACKENDS = ("loky", "dask")
ANSWERS_S = 10  # a scheduler or worker that has not answered by then is not there
DEATHS = 3  # of workers in a row, no task being finished in between: memory is short, or a task ends its worker each time
DECISIVE = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip
"""Of the settings in ace/pipeline/kernel.py those that can change a result."""
CALLER = uuid.uuid4().hex
"""Of this process, so that a worker which outlives it keeps nothing of what it has read for it."""


class PoolError(config.ConfigError):
    """A pool that can't be used, or whose workers die; the text is the one line that the user needs."""


def source_sha256(without=()):
    """Of all modules and prompts of ace, those of the packages `without` left out."""
    package, sha = Path(__file__).parent, hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.txt")]):
        if path.relative_to(package).parts[0] not in without:
            sha.update(path.read_bytes())
    return sha.digest()


SOURCE = source_sha256().hex()[:12]  # once, when the code is read


def identity():
    """What decides a result's bytes, of this process: {name: text}."""
    return {
        "code of ace": SOURCE,
        "params.yaml": _params_sha256(),
        "Python": platform.python_version(),
        **{f"version of {name}": each for name, each in versions().items()},
        "processor": processor(),
        **{name: os.environ.get(name, "not set") for name in DECISIVE},
    }


def _params_sha256():
    """Of the workspace's parameters, which a worker must see too: the folder is shared."""
    try:
        return hashlib.sha256((config.root() / "params.yaml").read_bytes()).hexdigest()[:12]
    except config.ConfigError:
        return "missing"


# --- the backends -----------------------------------------------------------------------------------------------------


def backend():
    """The one that ACE_BACKEND names. Raises PoolError for any other."""
    name = os.environ.get("ACE_BACKEND", "") or "loky"
    if name not in BACKENDS:
        close = difflib.get_close_matches(name, BACKENDS, n=1)
        raise PoolError(f"ACE_BACKEND = {name!r}: give {', '.join(BACKENDS)}" + (f"; did you mean {close[0]}?" if close else ""))
    return name


def check():
    """Raises PoolError if the pool can't be used: for who wants to know before any work."""
    if backend() == "dask":
        _client()


@functools.cache
def _client():
    """The connection to ACE_DASK, all of whose workers were compared with this process."""
    try:
        import distributed
    except ImportError:
        raise PoolError("ACE_BACKEND = 'dask' needs the package distributed: `pip install 'ace[dask]'`") from None
    address = os.environ.get("ACE_DASK", "")
    if not address:
        raise PoolError("ACE_DASK: give the address of a Dask scheduler, as tcp://host:8786")
    try:
        client = distributed.Client(address, timeout=ANSWERS_S, set_as_default=False)
    except Exception as error:  # OSError, ValueError and what is below them, by what the address looks like
        reason = " ".join(str(error).split())[:160]
        raise PoolError(f"ACE_DASK = {address!r}: no Dask scheduler answers there: {reason}") from None
    try:
        client.wait_for_workers(1, timeout=ANSWERS_S)
        threads = client.nthreads()
        told = client.run(_told, os.getcwd(), on_error="return")
    except TimeoutError:
        raise PoolError(f"ACE_DASK = {address!r}: the scheduler has no worker: start some with `make worker`") from None
    for worker, theirs in told.items():
        if isinstance(theirs, BaseException):
            raise PoolError(f"Dask worker {worker} can't run this project: {type(theirs).__name__}: {theirs}")
        if threads[worker] != 1:
            raise PoolError(f"Dask worker {worker} has {threads[worker]} threads: give it one (`make worker`, or --nthreads 1)")
        _compare(f"Dask worker {worker}", theirs, identity())
    return client


def _told(folder):
    _enter(folder)
    return identity()


def _enter(folder):
    if not os.path.isdir(folder):
        raise PoolError(f"no folder {folder} here: workers share the caller's folder, at the same path")
    os.chdir(folder)


def _compare(worker, theirs, ours):
    """Raises PoolError where a worker's identity is another."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise PoolError(
                f"{worker}: {name} is {theirs.get(name, 'not known')}, here {value}: results would differ; start the workers "
                "anew, from this version and on this kind of processor (`make worker`)"
            )


def _died():
    """Exceptions that say: a worker is gone. Dask starts its task again by itself, a few times, before it says so."""
    if backend() == "dask":
        from distributed import KilledWorker

        return (KilledWorker,)
    return (BrokenProcessPool,)


def _parallel(n_tasks):
    """A joblib.Parallel for so many tasks that gives results as they are done."""
    if backend() == "loky":
        n_jobs = min(config.jobs(), n_tasks)
        with joblib.parallel_config("loky", inner_max_num_threads=1):  # also where the caller was started without settings
            return joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    with joblib.parallel_config("dask", client=_client(), wait_for_workers_timeout=ANSWERS_S):
        return joblib.Parallel(n_jobs=-1, batch_size=1, return_as="generator_unordered")


# --- running tasks ----------------------------------------------------------------------------------------------------


def finished(function, tasks):
    """Yields (number, function(*tasks[number])) in the order in which they are done; started in the order of the tasks.

    Raises what a task raises, PoolError if workers die DEATHS times in a row.
    """
    waiting, deaths = dict(enumerate(tasks)), 0
    where = (identity(), CALLER, os.getpid(), os.getcwd(), backend())
    while waiting:
        work = [joblib.delayed(_call)(where, number, function, task) for number, task in waiting.items()]
        try:
            for number, result in _parallel(len(work))(work):
                del waiting[number]
                deaths = 0
                yield number, result
        except _died():
            deaths += 1
            if deaths >= DEATHS:
                raise PoolError(f"workers died {deaths} times in a row (out of memory? fewer at once: ACE_JOBS)") from None
            print(f"a worker died; what was not finished, {len(waiting)} of {len(work)}, is started again", file=sys.stderr)


def run(function, tasks):
    """[function(*task) for each task]."""
    return [result for _, result in sorted(finished(function, tasks), key=lambda each: each[0])]


def _call(where, number, function, task):
    """(number, function(*task)), in a worker that was compared with its caller."""
    import torch

    ours, caller, pid, folder, kind = where
    if os.getpid() != pid:
        _prepare(caller, folder)
        if kind == "loky":
            ours = {name: value for name, value in ours.items() if not name.endswith("_NUM_THREADS")}  # 1, by `_parallel`
            _end_with(pid)
        _compare(f"worker on {platform.node()}", identity(), ours)
    torch.set_num_threads(1)
    return number, function(*task)


@functools.lru_cache(maxsize=1)
def _prepare(caller, folder):
    """Once for each caller: what was read for another one is forgotten, since its files may have changed."""
    _enter(folder)
    for name, module in list(sys.modules.items()):
        if name.startswith("ace.") and name != __name__:
            for each in vars(module).values():
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


@functools.cache
def _end_with(parent):
    """Ends this process soon after its parent: else a killed run would train on, beside the one that resumes."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch parent").start()


# --- progress ---------------------------------------------------------------------------------------------------------


def report(path, done, total):
    """Leaves in a file how far a run is: for `Progress`, in another process."""
    with written_whole(path) as partial:
        partial.write_text(f"{done} {total}")


class Progress:
    """One bar with a time to go over runs in other processes, which leave their progress in files."""

    def __init__(self, title, files, weights=None):
        """weights: of each run in the whole, default: all the same."""
        self.title, self.files, self.weights, self.stop = title, files, weights, threading.Event()

    def __enter__(self):
        for file in self.files:
            file.unlink(missing_ok=True)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def __exit__(self, error, *_):
        self.failed = error is not None
        self.stop.set()
        self.thread.join()

    def _watch(self):
        shown = "{desc} {percentage:3.0f} % |{bar}| {elapsed} so far, "
        with tqdm(total=100, desc=self.title, bar_format=shown + "estimating the time to go") as bar:
            while True:
                ended = self.stop.wait(1.0)
                done = ended and not self.failed
                bar.n = 100 if done else min(int(100 * np.average(list(map(_share, self.files)), weights=self.weights)), 99)
                if bar.n:  # no estimate from nothing
                    bar.bar_format = shown + "{remaining} to go"
                bar.refresh()
                if ended:
                    return


def _share(file):
    try:
        done, total = map(int, file.read_text().split())
        return done / total
    except (FileNotFoundError, ValueError):
        return 0.0
