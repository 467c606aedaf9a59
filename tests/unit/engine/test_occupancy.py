"""Which programs have a GPU's memory, as a message names them, by an NVML of the test's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from pipelines.device.memory import memory_taken
from pipelines.device.occupancy import explain_taken, processes

GIB = 2**30
GPU = torch.device("cuda", 0)
UUID = "5c1d0000-0000-0000-0000-000000000000"


class Nvml:
    """A driver with one GPU, or a part of one, whose processes the test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.compute: list[SimpleNamespace] = []
        self.prefix = "GPU-"
        patch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
        for name, function in {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByUUID": self._find,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: self.compute,
            "nvmlDeviceGetGraphicsRunningProcesses": self._refuse,
        }.items():
            patch.setattr(pynvml, name, function)

    def runs(self, pid: int, gib: float | None) -> None:
        used = None if gib is None else int(gib * GIB)
        self.compute.append(SimpleNamespace(pid=pid, usedGpuMemory=used))

    def _find(self, uuid: str) -> str:
        if uuid != f"{self.prefix}{UUID}":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def _refuse(self, _: str) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(monkeypatch)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[int]:
    """A program with a secret among its arguments."""
    script = tmp_path / "train.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    command = [sys.executable, "-u", str(script), "--token", "sk-secret"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


@pytest.mark.parametrize("prefix", ["GPU-", "MIG-"])
def test_programs_are_named_and_their_arguments_are_not(nvml: Nvml, training: int, prefix: str) -> None:
    nvml.prefix = prefix
    nvml.runs(training, 60)
    nvml.runs(os.getpid(), 2)
    told = explain_taken(GPU, 80 * GIB, 10 * GIB, GIB)
    name = Path(sys.executable).name
    assert told == (
        f"other programs have 68.0 of the GPU's 80.0 GiB: {name} train.py (PID {training}) 60.0 GiB, 8.0 GiB by "
        "processes that can't be seen from here"
    )


def test_what_can_not_be_seen_is_told_as_bytes(nvml: Nvml) -> None:
    nvml.runs(2**22 + 1, 60)  # a number that no process here has: another container's
    assert explain_taken(GPU, 80 * GIB, 10 * GIB, GIB) == (
        "other programs have 69.0 of the GPU's 80.0 GiB: 69.0 GiB by processes that can't be seen from here"
    )


def test_a_driver_that_does_not_say_how_much_still_names_them(nvml: Nvml, training: int) -> None:
    nvml.runs(training, None)
    assert f"train.py (PID {training}) an unknown part" in explain_taken(GPU, 80 * GIB, 10 * GIB, 0)


def test_without_nvml_only_bytes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert processes(GPU) == []


def test_the_error_names_the_checkpoint_both_figures_and_what_would_help(
    nvml: Nvml, training: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(uuid=UUID, is_integrated=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * GIB, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    nvml.runs(training, 21)
    told = str(memory_taken("weights/flux", 19.4 * GIB, 0.5 * GIB, GPU))
    assert told.startswith("weights/flux takes 19.4 GiB of the GPU, and there are 0.5 GiB for weights now: other ")
    assert f"train.py (PID {training}) 21.0 GiB" in told
    assert "runtime.offload or runtime.quantize" in told
