"""Another maker's processor: its bits come from MKL's own choice of kernels, and where it can't be imitated one line says so."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ace.config.host import maker, processor
from ace.pipeline import kernel, vendor
from ace.pipeline.repro import WorkspaceError

PRODUCT = """
import hashlib, torch
a = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
print(hashlib.sha256((a @ a.T).numpy().tobytes() + a.exp().numpy().tobytes()).hexdigest())
"""
HERE = maker(processor())
POSSIBLE = HERE and platform.system() == "Linux" and shutil.which("cc")


def product(variables):
    """Digest of a product of matrices, as a process of these environment variables computes it."""
    environment = kernel.environment() | variables
    return subprocess.run([sys.executable, "-c", PRODUCT], env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not POSSIBLE, reason="Intel's and AMD's processors imitate each other on Linux, with a C compiler")
def test_mkl_takes_the_other_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(vendor, "ROOT", tmp_path)
    monkeypatch.setenv("LD_PRELOAD", "")
    native, other = product({}), product(vendor.imitating({"intel": "amd", "amd": "intel"}[HERE]))
    assert len(native) == len(other) == 65 and native != other
    monkeypatch.setattr(vendor, "processor", lambda: "AMD" if HERE == "intel" else "Intel")
    assert product(vendor.imitating(HERE)) == native, "the answers of a maker give its own bits on its own processor"


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("AMD EPYC", "amd"), ("Intel(R) Xeon(R) Processor", "intel"), ("13th Gen Intel(R) Core(TM) i7-13700H", "intel"),
        ("Genuine Intel(R) CPU", "intel"), ("aarch64", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_maker_is_in_a_processors_name(cpu, expected):
    assert maker(cpu) == expected


@pytest.fixture
def on_intel(monkeypatch, tmp_path):
    """As on Linux on an Intel processor, with a compiler that writes this text, or ends with an error where there is none."""
    monkeypatch.setattr(vendor, "ROOT", tmp_path)
    monkeypatch.setattr(vendor, "processor", lambda: "Intel(R) Xeon(R)")
    monkeypatch.setattr(vendor.platform, "system", lambda: "Linux")
    monkeypatch.setenv("LD_PRELOAD", "")

    def compiler(text):
        script = tmp_path / "cc"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.setattr(vendor.shutil, "which", lambda name: str(script))

    return compiler


@pytest.mark.parametrize(
    ("cpu", "wanted"), [("AMD EPYC", "amd"), ("Intel(R) Xeon(R)", "intel"), ("aarch64", "amd"), ("Intel(R) Xeon(R)", "")]
)
def test_other_makers_are_not_imitated(on_intel, monkeypatch, cpu, wanted):
    monkeypatch.setattr(vendor, "processor", lambda: cpu)
    assert f"this is {cpu}" in refused(wanted)


def test_nor_on_another_system(on_intel, monkeypatch):
    monkeypatch.setattr(vendor.platform, "system", lambda: "Darwin")
    assert "on Linux" in refused()


def test_what_goes_wrong_is_one_line(on_intel, monkeypatch, tmp_path):
    monkeypatch.setattr(vendor.shutil, "which", lambda name: None)
    assert "a C compiler" in refused()
    on_intel("echo no space left; echo on device >&2; exit 1")
    assert refused().endswith("cc failed: on device")
    on_intel("touch $4")  # no library
    assert refused().startswith("checkpoints/vendor/amd.so is not loaded: ")
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("no folder")
    assert refused().startswith("checkpoints/vendor/amd.so: ")
    monkeypatch.setattr(vendor, "ROOT", Path("/a folder"))
    assert "without spaces and colons, not /a folder" in refused()


@pytest.mark.parametrize(("cpu", "name", "zen"), [("Intel(R) Xeon(R)", "amd", 1), ("AMD EPYC", "intel", 0)])
def test_a_library_that_is_loaded_already_stays(on_intel, monkeypatch, tmp_path, cpu, name, zen):
    on_intel("cat > $4")
    monkeypatch.setattr(vendor, "processor", lambda: cpu)
    monkeypatch.setattr(vendor, "PROBE", f"print({zen})")
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    library = tmp_path / f"checkpoints/vendor/{name}.so"
    assert vendor.imitating(name) == {"LD_PRELOAD": f"{library}:libm.so.6"}
    assert f"int mkl_serv_cpuiszen(void) {{ return {zen}; }}" in library.read_text()


def refused(name="amd"):
    with pytest.raises(WorkspaceError) as error:
        vendor.imitating(name)
    assert "\n" not in str(error.value)
    return str(error.value)
