"""Another maker's processor: environment variables under which training gives, on Intel's or AMD's, the bits of the other's.

MKL takes other kernels on AMD's processors than on Intel's, whatever MKL_CBWR says; learning amplifies the rounding. MKL asks
functions of its own which processor it is on, and a library that is loaded ahead of it answers in their place. Seen so far:
runs of SAC and ACE, of an AMD EPYC on an Intel Xeon and the other way round.
"""

import os
import platform
import re
import shutil
import subprocess

from ace.config.host import maker, processor
from ace.pipeline.kernel import PYTHON
from ace.pipeline.repro import ROOT, WorkspaceError

ANSWERS = {
    "amd": {"mkl_serv_intel_cpu": 0, "mkl_serv_intel_cpu_true": 0, "mkl_serv_cpuiszen": 1},
    "intel": {"mkl_serv_intel_cpu": 1, "mkl_serv_intel_cpu_true": 1, "mkl_serv_cpuiszen": 0},
}
"""Of MKL's functions, by maker."""
LIBRARY = "checkpoints/vendor/{}.so"  # below the repository
PROBE = "import ctypes; print(ctypes.CDLL(None).mkl_serv_cpuiszen())"


def imitating(name):
    """Environment variables under which a process computes as on that maker's processors.

    WorkspaceError where that is not possible, in one line.
    """
    if {maker(processor()), name} != {*ANSWERS} or platform.system() != "Linux":
        raise WorkspaceError(f"only Intel's and AMD's processors can imitate each other, on Linux; this is {processor()}")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if not compiler:
        raise WorkspaceError("to imitate another processor takes a C compiler, and neither cc, gcc nor clang is on the PATH")
    place = LIBRARY.format(name)
    library, making = ROOT / place, ROOT / f"{place}.{os.getpid()}"
    if re.search(r"[\s:]", str(library)):
        raise WorkspaceError(f"to imitate another processor takes a folder without spaces and colons, not {ROOT}")
    source = "".join(f"int {function}(void) {{ return {answer}; }}\n" for function, answer in ANSWERS[name].items())
    command = [compiler, "-shared", "-fPIC", "-o", str(making), "-x", "c", "-"]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(command, input=source, capture_output=True, text=True)
        if made.returncode:
            raise WorkspaceError(f"{compiler} failed: {' '.join(made.stderr.split())[-300:]}")
        making.replace(library)
    except OSError as error:
        raise WorkspaceError(f"{place}: {error}") from None
    variables = {"LD_PRELOAD": ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))}
    probed = subprocess.run([PYTHON, "-c", PROBE], env=os.environ | variables, capture_output=True, text=True)
    if probed.stdout != f"{ANSWERS[name]['mkl_serv_cpuiszen']}\n":  # a file system from which nothing may be loaded, say
        raise WorkspaceError(f"{place} is not loaded: {' '.join(probed.stderr.split())[-300:]}")
    return variables
