"""What this process runs on, as far as it decides bytes: versions of packages, kind of processor."""

import importlib.metadata
import platform
import re
from pathlib import Path

VERSIONS = ("grid2op", "lightsim2grid", "numpy", "torch", "transformers", "peft")


def versions():
    """{name: version} of the packages that a result depends on."""
    return {name: importlib.metadata.version(name).split("+")[0] for name in VERSIONS}


def processor():
    """Its name, by which two kinds of processor are told apart."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def maker(cpu):
    """Of a processor's name, as in results/provenance/: "amd", "intel" or "" for any other."""
    return (re.findall(r"\b(amd|intel)\b", cpu.lower()) or [""])[0]
