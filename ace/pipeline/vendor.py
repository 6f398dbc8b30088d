"""Another maker's processor: a command run so that training gives, on Intel's, the bits that it gives on AMD's.

    python -m ace.pipeline.vendor amd COMMAND...

MKL takes other kernels on AMD's processors than on Intel's, whatever MKL_CBWR says; learning amplifies the rounding. MKL asks
functions of its own which processor it is on, and a library that is loaded ahead of it answers in their place. A C compiler
makes that library. Seen: on an Intel Xeon, runs of WCCI 2020 that were made on an AMD EPYC, bit by bit. The other way round is
not tried.
"""

import os
import platform
import re
import shutil
import subprocess
import sys

from ace.config.host import processor
from ace.pipeline.repro import ROOT, WorkspaceError, ended, surroundings

ANSWERS = {"amd": {"mkl_serv_intel_cpu": 0, "mkl_serv_intel_cpu_true": 0, "mkl_serv_cpuiszen": 1}}
"""Of MKL's functions, by the maker that is imitated."""
LIBRARIES = "checkpoints/vendor"  # below the repository


def maker(cpu):
    """In lower case, the first word of a processor's name as in results/provenance/: "amd", "intel"."""
    return re.match(r"\w*", cpu.lower())[0]


def imitating(name):
    """Environment variables under which a process computes as on that maker's processors: {} on one of them.

    WorkspaceError where that is not possible, in one line.
    """
    here = maker(processor())
    if here == name:
        return {}
    if name not in ANSWERS or here != "intel" or platform.system() != "Linux":
        raise WorkspaceError(f"{processor()}: only Linux on Intel's processors can imitate another maker's, and only AMD's")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if not compiler:
        raise WorkspaceError(f"{name}: a C compiler is needed to imitate it, and neither cc, gcc nor clang is on the PATH")
    folder = ROOT / LIBRARIES
    folder.mkdir(parents=True, exist_ok=True)
    library, making = folder / f"{name}.so", folder / f"{name}.{os.getpid()}"
    source = "".join(f"int {function}(void) {{ return {answer}; }}\n" for function, answer in ANSWERS[name].items())
    command = [compiler, "-shared", "-fPIC", "-o", str(making), "-x", "c", "-"]
    made = subprocess.run(command, input=source, capture_output=True, text=True)
    if made.returncode:
        raise WorkspaceError(f"{name}: {compiler} failed: {' '.join(made.stderr.split())[-300:]}")
    making.replace(library)
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))}


def main(arguments=None):
    name, *command = (sys.argv[1:] if arguments is None else arguments) or [""]

    def run():
        if not name or not command:
            raise WorkspaceError(f"give a maker ({', '.join(ANSWERS)}) and a command, as in the module's first lines")
        return subprocess.run(command, env=surroundings(ROOT) | imitating(name)).returncode

    return ended(run, "vendor")


if __name__ == "__main__":
    sys.exit(main())
