"""What the doctor says of a driver that does not work, by an nvidia-smi that says so."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.protocol.machine import UNDER_WSL
from server.flows.operators import gpu_findings
from server.flows.operators.gpu_findings import _driver, _worker
from server.settings import Settings

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.82"
LOST = "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU"
H100 = "NVIDIA H100 80GB HBM3, 580.82.07, 81559 MiB, 81008 MiB"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Nothing but the test's own nvidia-smi is on the path."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(gpu_findings, "KERNEL_MODULE", tmp_path / "version")
    (tmp_path / "bin").mkdir()
    return Settings(home=tmp_path / "home")


def write_nvidia_smi(folder: Path, script: str) -> None:
    file = folder / "bin" / "nvidia-smi"
    file.write_text(f"#!{sys.executable}\nimport sys, time\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("said", "status", "repeated", "remedy"),
    [
        (MISMATCH, 18, "nvidia-smi says: Failed to initialize NVML: Driver/library version mismatch; NVML", "upgraded"),
        (LOST, 15, "GPU is lost.  Reboot the system to recover this GPU (exit status 15)", "look for Xid in `dmesg`"),
        ("No devices were found", 6, "nvidia-smi says: No devices were found (exit status 6)", "NVRM"),
        ("No devices were found", 0, "nvidia-smi says: No devices were found.", "NVRM"),
        (
            "Failed to initialize NVML: Unknown Error",
            255,
            "NVML: Unknown Error (exit status 255)",
            "container, restart",
        ),
        ("NVIDIA H100, 580.82, [Unknown Error], [Unknown Error]", 0, "[Unknown Error]", "restart the machine"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", 9, "status 9", "modprobe"),
        (
            "Segmentation fault",
            139,
            "nvidia-smi says: Segmentation fault (exit status 139)",
            "Install the driver again",
        ),
        ("", 1, "nvidia-smi says nothing (exit status 1)", "Install the driver again"),
    ],
)
def test_the_words_of_a_driver_that_fails_are_repeated_with_the_remedy(
    said: str, status: int, repeated: str, remedy: str, settings: Settings, tmp_path: Path
) -> None:
    write_nvidia_smi(tmp_path, f"print({said!r})\nsys.exit({status})")
    found = _driver(settings)
    assert found.ok is False
    assert repeated in found.detail
    assert remedy in found.detail
    assert "\n" not in found.detail
    assert _driver(settings.model_copy(update={"device": "cpu"})).ok is None


def test_what_is_said_on_stderr_is_repeated_too(settings: Settings, tmp_path: Path) -> None:
    write_nvidia_smi(tmp_path, f"sys.exit({LOST!r})")
    assert "GPU is lost" in _driver(settings).detail


def test_a_driver_that_hangs_is_told_and_not_waited_for(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nvidia_smi(tmp_path, "time.sleep(600)")
    monkeypatch.setattr(gpu_findings, "COMMAND_LIMIT_S", 0.2)
    found = _driver(settings)
    assert found.ok is False
    assert found.detail.startswith("nvidia-smi has not answered for 0.2 s. The driver or a GPU hangs: look for Xid")


def test_a_driver_that_works_is_ok_and_one_that_is_not_there_a_note(settings: Settings, tmp_path: Path) -> None:
    assert (_driver(settings).ok, _driver(settings).detail) == (None, "nvidia-smi is not there: no NVIDIA driver")
    assert _driver(settings.model_copy(update={"device": "cuda"})).ok is False
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module 580.82.07")
    hidden = _driver(settings)
    assert hidden.ok is False
    assert "In a container, start it with `--gpus all`" in hidden.detail
    write_nvidia_smi(tmp_path, f"print({H100!r})")
    assert (_driver(settings).ok, _driver(settings).detail) == (True, H100)


def test_under_wsl_nvidia_smi_is_found_without_a_path_to_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nvidia_smi(tmp_path, f"print({H100!r})")
    monkeypatch.setattr(gpu_findings, "OF_WINDOWS", tmp_path / "bin/nvidia-smi")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert (_driver(settings).ok, _driver(settings).detail) == (True, H100)


def test_under_wsl_the_remedy_is_that_of_windows(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_findings, "is_wsl", lambda: True)
    assert "install it there" in _driver(settings).detail
    for said, status in ((MISMATCH, 18), ("No devices were found", 0), ("couldn't communicate with the driver", 9)):
        write_nvidia_smi(tmp_path, f"print({said!r})\nsys.exit({status})")
        found = _driver(settings)
        assert found.detail.endswith(UNDER_WSL)
        assert "modprobe" not in found.detail
    write_nvidia_smi(tmp_path, "time.sleep(600)")
    monkeypatch.setattr(gpu_findings, "COMMAND_LIMIT_S", 0.2)
    assert _driver(settings).detail.endswith(UNDER_WSL)
    write_nvidia_smi(tmp_path, f"print({H100!r})")
    monkeypatch.setattr(gpu_findings, "COMMAND_LIMIT_S", 60.0)
    assert _driver(settings).detail == H100


CPU_TORCH: dict[str, Any] = {"torch": "2.13.0+cpu", "cuda": None, "problems": [], "works": False, "is_gpu": False}


@pytest.mark.parametrize(
    ("told", "device", "has_driver", "ok", "words"),
    [
        ({}, "auto", False, None, "torch 2.13.0+cpu for CPUs sees no GPU: this torch is for CPUs"),
        ({}, "auto", True, False, "this torch is for CPUs. Install the torch for CUDA in its place: `pip install"),
        ({"cuda": "13.0"}, "auto", True, False, "sees no GPU: the driver is missing, or older than this CUDA"),
        ({"works": True}, "cpu", True, None, "torch 2.13.0+cpu for CPUs sees no GPU"),
        ({"problems": ["no GPU can be used: ..."]}, "auto", True, False, "sees no GPU: no GPU can be used: ..."),
        ({"is_gpu": True, "works": True, "device": "H100 (cuda)", "cuda": "13.0"}, "auto", True, True, "sees H100"),
        (
            {"is_gpu": True, "works": True, "device": "H100 (cuda)", "cuda": "13.0", "problems": ["No segments."]},
            "auto", True, None, "torch 2.13.0+cpu for CUDA 13.0 sees H100 (cuda): No segments.",
        ),
    ],
)  # fmt: skip
def test_what_a_worker_would_say_is_repeated(
    told: dict[str, Any], device: str, has_driver: bool, ok: bool | None, words: str, settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    printed = json.dumps({**CPU_TORCH, "device": None, **told})
    monkeypatch.setattr(gpu_findings, "python_command", lambda *_: [sys.executable, "-c", f"print({printed!r})"])
    found = _worker(settings.model_copy(update={"device": device}), has_driver=has_driver)
    assert found.ok is ok
    assert words in found.detail


def test_a_torch_that_can_not_be_imported_is_told_in_its_own_words(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "import sys; sys.exit('ImportError: libcublas.so.13: cannot open shared object file')"
    monkeypatch.setattr(gpu_findings, "python_command", lambda *_: [sys.executable, "-c", fails])
    found = _worker(settings, has_driver=True)
    assert found.ok is False
    assert "torch can't be used: ImportError: libcublas.so.13: cannot open shared object file. Install" in found.detail


@pytest.mark.slow
def test_the_checks_of_a_worker_are_run_as_they_are(settings: Settings) -> None:
    found = _worker(settings.model_copy(update={"device": "cpu"}), has_driver=False)
    assert (found.ok, found.detail.endswith("sees no GPU")) == (None, True)
