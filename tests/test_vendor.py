"""Another maker's processor: its bits come from MKL's own choice of kernels, and where it can't be imitated one line says so."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ace.config.host import processor
from ace.pipeline import kernel, vendor
from ace.pipeline.repro import WorkspaceError

HERE = vendor.maker(processor())


def one_line(error):
    return "\n" not in str(error.value)


def bits():
    a = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    return hashlib.sha256((a @ a.T).numpy().tobytes() + a.exp().numpy().tobytes()).hexdigest()


@pytest.mark.skipif(HERE != "intel", reason="an AMD processor is imitated on Intel's")
def test_mkl_takes_the_other_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(vendor, "ROOT", tmp_path)
    env = kernel.environment() | vendor.imitating("amd") | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", "from test_vendor import bits; print(bits())"]
    other = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch("[0-9a-f]{64}", other.strip()) and other.strip() != bits()


def test_a_maker_is_the_first_word_of_a_processors_name():
    names = ["AMD EPYC", "Intel(R) Xeon(R) Processor", "", "unknown"]
    assert [vendor.maker(name) for name in names] == ["amd", "intel", "", "unknown"]


def test_nothing_is_needed_on_a_processor_of_that_maker(monkeypatch):
    monkeypatch.setattr(vendor, "processor", lambda: "AMD EPYC")
    monkeypatch.setattr(vendor.shutil, "which", lambda name: None)
    assert vendor.imitating("amd") == {}
    with pytest.raises(WorkspaceError, match=r"^AMD EPYC: only Linux on Intel's processors can imitate") as error:
        vendor.imitating("intel")
    assert one_line(error)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [(None, "a C compiler is needed"), ("false", "amd: false failed: "), ("ls", "amd: ls failed: ls: ")],
    ids=["none", "says nothing", "another program"],
)
def test_without_a_compiler_it_is_one_line(monkeypatch, tmp_path, capsys, compiler, said):
    monkeypatch.setattr(vendor, "ROOT", tmp_path)
    monkeypatch.setattr(vendor, "processor", lambda: "Intel")
    monkeypatch.setattr(vendor.shutil, "which", lambda name: compiler)
    with pytest.raises(WorkspaceError, match=said) as error:
        vendor.imitating("amd")
    assert one_line(error)
    assert vendor.main(["amd", "true"]) == 1 and capsys.readouterr().err.count("\n") == 1


def test_a_command_runs_under_it_and_its_exit_code_is_passed_on(monkeypatch, capsys):
    monkeypatch.setattr(vendor, "imitating", lambda name: {"IMITATED": name})
    assert vendor.main(["amd", "sh", "-c", 'test "$IMITATED" = amd && exit 7']) == 7
    for given in ([], ["amd"]):
        assert vendor.main(given) == 1
        assert capsys.readouterr().err == "give a maker (amd) and a command, as in the module's first lines\n"
