"""The kernel that a pipeline notebook runs in: this interpreter, fixed settings, and never outliving its parent.

`python -m ace.pipeline.kernel -f FILE` is what `OwnKernel` starts; it is not meant to be called by hand. The plain
`python3` kernelspec would do for a person, but a stage needs three things more: the interpreter that runs the stage and
not whichever a user's folder names first, settings that give the same bytes, and an end together with the stage.
"""

import logging
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.localinterfaces import localhost
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

# The folder that holds the package `ace` in use: the repository's, or that of a workspace with its own copy.
PACKAGE_HOME = Path(__file__).resolve().parents[2]

# Made absolute here, before anything changes folder: it is `.venv/bin/python` where dvc.yaml's PATH found it.
PYTHON = os.path.abspath(sys.executable)
PREFIX = os.path.abspath(sys.prefix)

POLL_S = 1.0

# Forced, since each of them can change a result's bytes (or, the thread counts, slow down seeds that run in parallel).
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "0",  # no dates in SVG and PDF
    "DVC_NO_ANALYTICS": "1",
    "JUPYTER_PREFER_ENV_PATH": "1",
}

# Libraries pick kernels by CPU, and AVX-512 rounds differently from AVX2 (seen: other weights after 320 Adam steps).
# AVX2 is on every x86 machine of the last ten years and cost under 10 % in the same trial.
SETTINGS_X86 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}

# A run with a checkpoint from the hub may turn this off; everything else must not look at the network.
DEFAULTS = {"HF_HUB_OFFLINE": "1"}

# Of a kernel alone: remarks of libraries to their own users, which would come between a stage's lines of progress.
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore:A worker stopped while some jobs:UserWarning"}


def environment():
    """The whole environment of a kernel, or of any process whose numbers must be the same again."""
    env = {**DEFAULTS, **os.environ, **SETTINGS}
    if platform.machine().lower() in {"x86_64", "amd64"}:
        env |= SETTINGS_X86
    # A notebook imports the `ace` that belongs to its pipeline, whatever is installed.
    env["PYTHONPATH"] = str(PACKAGE_HOME)
    env["PATH"] = os.pathsep.join([os.path.dirname(PYTHON), env.get("PATH", os.defpath)])
    return env


class OwnKernel(AsyncKernelManager):
    """A kernel manager whose only kernel is `sys.executable -m ace.pipeline.kernel`."""

    groups: set[int] = set()  # process groups started by this process  # noqa: RUF012

    @default("transport")
    def _transport(self):
        # Files instead of TCP ports: no other user of the machine can connect.
        return "ipc" if os.name == "posix" else "tcp"

    @default("ip")
    def _own_ip(self):
        # What the names of these files begin with. Left alone it is the same for all kernels of a working directory, and two
        # stages that start in the same moment would share them.
        if self.transport != "ipc":
            return localhost()
        self.sockets = tempfile.TemporaryDirectory(prefix="ace-kernel-")  # goes with this object
        return str(Path(self.sockets.name) / "socket")

    @property
    def kernel_spec(self):
        command = [PYTHON, "-m", "ace.pipeline.kernel", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **kwargs):
        await super().start_kernel(**kwargs | {"env": environment() | QUIET})
        self.groups.add(self.provisioner.pgid)

    @classmethod
    def kill_groups(cls):
        """Ends what a kernel may have left behind, e.g. the workers of a pool when the kernel itself was killed."""
        while cls.groups:
            group = cls.groups.pop()
            with suppress(ProcessLookupError, PermissionError):  # ended already, the usual case
                os.killpg(group, signal.SIGKILL)


def when_orphaned(act):
    """Calls `act` in a thread of its own once the parent of this process has died."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(POLL_S)
        act()

    threading.Thread(target=watch, daemon=True, name="watch parent").start()


def main():
    # ipykernel's own watch ends the kernel alone: the workers of a joblib pool would train on for hours, beside the run
    # that resumes. The kernel leads a process group (jupyter_client starts a session), so the group is ended.
    os.environ["JPY_PARENT_PID"] = "1"  # its way of saying: started by a program, do not watch
    if os.getpgrp() == os.getpid():
        when_orphaned(lambda: os.killpg(0, signal.SIGKILL))
    from ipykernel.kernelapp import launch_new_instance

    if sys.path[0] == "":
        del sys.path[0]
    # A kernel is interrupted as it is shut down, and may log that as an error: what a stage prints is what went wrong in
    # its cells, which comes as messages and not by this log.
    launch_new_instance(log_level=logging.CRITICAL)


if __name__ == "__main__":
    main()
