"""The first day on a GPU machine: what is wrong with it is one sentence with its remedy, before anything is loaded."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from pipelines.device import choice, driver, start_checks
from pipelines.device.choice import choose_device
from pipelines.device.driver import kernel_cards
from pipelines.device.occupancy import Holder
from pipelines.device.start_checks import check_device, compute_once, has_kernels, ptxas_problem, shared_memory_problem
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.machine import is_container, is_wsl
from pipelines.protocol.messages import DeviceChoice

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
CPU = torch.device("cpu")
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version."
)
UNKNOWN = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
NOT_READY = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 802: system not yet initialized"
)
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSearch for `cudaErrorDevicesUnavailable'"
EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


class Machine:
    """NVML, the kernel and CUDA of a machine that a test makes up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.nvml(pynvml.NVMLError_LibraryNotFound)

    def nvml(
        self, failure: Any = None, cards: tuple[str, ...] = ("NVIDIA H100",), mode: int = 0, cuda: int = 12080
    ) -> None:
        def init() -> None:
            if failure is not None:
                raise (
                    failure() if failure is not pynvml.NVMLError else failure(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
                )

        fake = SimpleNamespace(
            NVMLError=pynvml.NVMLError, NVMLError_LibraryNotFound=pynvml.NVMLError_LibraryNotFound, nvmlInit=init,
            nvmlShutdown=lambda: None, nvmlSystemGetDriverVersion=lambda: "570.86.10",
            nvmlSystemGetCudaDriverVersion_v2=lambda: cuda, nvmlDeviceGetCount=lambda: len(cards),
            nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetName=lambda index: cards[index],
            nvmlDeviceGetComputeMode=lambda _: mode,
        )  # fmt: skip
        self.patch.setattr(driver, "pynvml", fake)

    def kernel(self, *cards: str) -> None:
        for module in (choice, start_checks):
            self.patch.setattr(module, "kernel_cards", lambda: list(cards))

    def cuda(self, said: str) -> None:
        def fail() -> None:
            raise RuntimeError(said)

        self.patch.setattr(torch.version, "cuda", "13.0")
        self.patch.setattr(torch.cuda, "init", fail)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(monkeypatch)
    made.kernel()
    return made


def why(wanted: DeviceChoice) -> str:
    with pytest.raises(NoDevice, match=r"^no GPU can be used: .* DARKROOM_DEVICE=cpu draws on the CPU\.$") as error:
        choose_device(wanted)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_torch_for_cpus_beside_a_card_is_refused(wanted: DeviceChoice, machine: Machine) -> None:
    machine.nvml()
    said = why(wanted)
    assert f"torch {torch.__version__} is built for the CPU alone, and there is NVIDIA H100." in said
    assert "`pip install --force-reinstall torch==" in said
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (TOO_OLD, "NVIDIA's driver 570.86.10 is too old for this torch: it runs CUDA 12.8, and torch"),
        (TOO_OLD, "is built for CUDA 13.0. Install driver 580 or newer, or a torch that is built for CUDA 12."),
        (NOT_READY, "CUDA error 802: system not yet initialized. Start NVIDIA's fabric manager: `sudo systemctl start"),
        (UNKNOWN, "after program start. Stop all that uses a GPU, this server too, and load the driver's module again"),
        ("a new error of CUDA", "a new error of CUDA. `nvidia-smi` may say more."),
    ],
)
def test_a_card_that_cuda_does_not_take_is_never_replaced_by_the_cpu(said: str, words: str, machine: Machine) -> None:
    machine.nvml()
    machine.cuda(said)
    assert words in why("auto")


@pytest.mark.parametrize("said", [UNKNOWN, TOO_OLD, NO_DRIVER])
def test_under_wsl_the_remedy_is_in_windows(said: str, machine: Machine) -> None:
    """A driver of Linux that is installed there hides the one that works."""
    machine.nvml()
    machine.cuda(said)
    machine.patch.setattr(choice, "is_wsl", lambda: True)
    assert "Under WSL the driver is that of Windows: install it there" in why("auto")
    assert "modprobe" not in why("auto")
    assert "Install NVIDIA's driver" not in why("auto")


def test_a_card_of_windows_that_wsl_does_not_reach_is_not_replaced_in_silence(machine: Machine, tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/wsl/lib/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert kernel_cards(tmp_path) == ["an NVIDIA GPU of Windows"]
    machine.kernel(*kernel_cards(tmp_path))
    machine.cuda(UNKNOWN)
    for module in (choice, start_checks):
        machine.patch.setattr(module, "is_wsl", lambda: True)
    (said,) = check_device(choose_device("auto"))
    assert said.startswith("This machine has an NVIDIA GPU of Windows, which can't be reached from here, so models run")
    assert "Under WSL the driver is that of Windows" in said
    machine.nvml(pynvml.NVMLError)
    assert "Under WSL the driver is that of Windows" in why("auto")


def test_a_container_under_wsl_that_sees_no_gpu_says_what_would_show_one(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    assert is_container(tmp_path)
    machine.kernel()
    machine.cuda(NO_DRIVER)
    machine.patch.setattr(start_checks, "is_wsl", lambda: True)
    machine.patch.setattr(start_checks, "is_container", lambda: False)
    assert check_device(choose_device("auto")) == ()
    machine.patch.setattr(start_checks, "is_container", lambda: True)
    (said,) = check_device(choose_device("auto"))
    assert "start it with `--gpus all`" in said
    assert check_device(choose_device("cpu"), "cpu") == ()
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert check_device(choose_device("auto")) == ()


def test_a_driver_that_fails_beside_a_card_is_no_machine_without_a_card(machine: Machine) -> None:
    machine.nvml(pynvml.NVMLError)
    machine.cuda(UNKNOWN)
    assert choose_device("auto") == CPU
    machine.kernel("NVIDIA H100")
    assert "version mismatch). Restart the machine: the driver was upgraded, and the kernel" in why("auto")


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_cards_that_are_hidden_on_purpose_are_left_alone(hidden: str, machine: Machine) -> None:
    machine.nvml()
    machine.kernel("NVIDIA H100")
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_device("auto") == CPU
    assert check_device(CPU) == ()


def test_a_container_without_its_gpus_says_how_to_start_it(machine: Machine) -> None:
    assert check_device(choose_device("auto")) == ()
    machine.kernel("NVIDIA H100")
    (said,) = check_device(choose_device("auto"))
    assert said.startswith("This machine has NVIDIA H100, which can't be reached from here, so models run on the CPU. ")
    assert "start it with `--gpus all`" in said
    assert said.endswith("If you want the CPU, set DARKROOM_DEVICE=cpu.")
    assert check_device(CPU, "cpu") == ()
    machine.cuda(NO_DRIVER)
    assert "there is NVIDIA H100, but not the driver's libraries. In a container, start it with" in why("cuda")
    machine.kernel()
    assert "Found no NVIDIA driver on your system. Install NVIDIA's driver. In a container" in why("cuda")


def test_the_kernel_knows_cards_by_its_module_and_by_the_bus(tmp_path: Path) -> None:
    assert kernel_cards(tmp_path) == []
    for address, vendor, kind in (("41:00.0", "0x10de", "0x030200"), ("41:00.1", "0x10de", "0x040300"),
                                  ("00:02.0", "0x8086", "0x030000")):  # fmt: skip
        place = tmp_path / "sys/bus/pci/devices" / f"0000:{address}"
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "class").write_text(f"{kind}\n")
    assert kernel_cards(tmp_path) == ["an NVIDIA GPU (PCI 0000:41:00.0)"]
    told = tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0"
    told.mkdir(parents=True)
    (told / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 255\n")
    assert kernel_cards(tmp_path) == ["NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((7, 0), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", False),  # a V100 with CUDA 13
        ((6, 0), "sm_75 sm_80", False),
        ((8, 9), "sm_75 sm_80 sm_86 sm_90", True),  # by the cubin of the same major version
        ((8, 0), "sm_86", False),
        ((12, 1), "sm_90 sm_120", True),
        ((12, 0), "sm_90 sm_100", False),
        ((12, 0), "sm_90 compute_90", True),  # by PTX
        ((9, 0), "sm_90a", True),
        ((10, 3), "sm_100a", False),
        ((10, 3), "sm_100f", True),
        ((12, 0), "sm_90 compute_90a", False),
    ],
)
def test_kernels_are_compared_with_the_card(capability: tuple[int, int], built: str, runs: bool) -> None:
    assert has_kernels(capability, built.split()) is runs


def test_a_card_without_kernels_is_refused_before_a_job(machine: Machine) -> None:
    machine.patch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    machine.patch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    machine.patch.setattr(torch.cuda, "init", lambda: None)
    machine.patch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    machine.patch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(NoDevice) as error:
        check_device(torch.device("cuda"))
    assert str(error.value) == (
        f"no GPU can be used: Tesla V100 has compute capability 7.0, for which torch {torch.__version__} has no "
        "kernels (it has sm_75, sm_80). Install a torch that is built for an older CUDA (12.6 has Maxwell, Pascal and "
        "Volta), or use another GPU. DARKROOM_DEVICE=cpu draws on the CPU."
    )


def failing(patch: pytest.MonkeyPatch, fails: Callable[[], bool], said: str) -> None:
    def compute(_: torch.device) -> None:
        if fails():
            raise torch.AcceleratorError(said)

    patch.setattr(start_checks, "_compute", compute)


def test_segments_are_left_off_where_an_allocation_fails_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    failing(monkeypatch, lambda: not told, "CUDA driver error: unknown error")
    assert compute_once(CPU) == (
        "The GPU's memory is allocated without expandable segments, which fail here (CUDA driver error: unknown "
        "error): images of many sizes may leave gaps in it. PYTORCH_ALLOC_CONF=expandable_segments:False hides this "
        "line."
    )
    assert told == [os.environ["PYTORCH_ALLOC_CONF"]] == ["expandable_segments:False,max_split_size_mb:64"]
    assert compute_once(CPU) is None


def test_segments_are_off_under_wsl_and_that_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")
    assert is_wsl(tmp_path)
    monkeypatch.setattr(start_checks, "is_wsl", lambda: True)
    for name in start_checks.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert "which many drivers refuse under WSL" in str(compute_once(CPU))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert compute_once(CPU) is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "torch can't read PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb=512 ("),
        (
            RuntimeError("CUDA error: initialization error\nFor debugging"),
            "CUDA error: initialization error. `nvidia-smi`",
        ),
    ],
)
def test_a_cuda_that_is_there_and_does_not_start_says_why(
    error: RuntimeError | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        if error is not None:
            raise error
        torch._C._accelerator_setAllocatorSettings(os.environ["PYTORCH_CUDA_ALLOC_CONF"])

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb=512")
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(NoDevice) as refused:
        start_checks.start_cuda()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_card_that_another_process_has_for_itself_names_its_mode(machine: Machine) -> None:
    machine.nvml(mode=EXCLUSIVE)
    failing(machine.patch, lambda: True, BUSY)
    with pytest.raises(NoDevice) as error:
        compute_once(CPU)
    said = str(error.value)
    assert "busy or unavailable: NVIDIA H100 is in EXCLUSIVE_PROCESS mode, and one process alone may use it" in said
    assert "`sudo nvidia-smi --compute-mode=DEFAULT`" in said
    assert start_checks.exclusive_problem(1) is None
    assert "NVIDIA H100 is in EXCLUSIVE_PROCESS mode" in str(start_checks.exclusive_problem(2))


def test_a_full_card_is_none_that_can_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda: True, "CUDA error: out of memory")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 8 * 2**30))
    assert compute_once(CPU) is None


def test_an_instance_whose_segments_need_nvml_goes_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch reports that as an allocation that failed, and may not ask NVML about an instance of a divided GPU."""
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * 2**30, 8 * 2**30))
    failing(
        monkeypatch, lambda: not told, 'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1165'
    )
    assert "without expandable segments, which fail here (NVML_SUCCESS == r INTERNAL" in str(compute_once(CPU))
    assert told == ["expandable_segments:False"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    told.clear()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**20, 8 * 2**30))
    assert compute_once(CPU) is None
    assert told == []


def test_a_card_on_which_cuda_has_no_room_to_start_names_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")

    failing(monkeypatch, lambda: True, "CUDA error: out of memory")
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8 * 2**30))
    monkeypatch.setattr("pipelines.device.occupancy.processes", lambda _: [Holder(77, "ollama", 7 * 2**30)])
    with pytest.raises(NoDevice, match=r"out of memory: other programs have 8.0 of the GPU's 8.0 GiB: ollama \(PID 77"):
        compute_once(CPU)


@pytest.mark.parametrize(("release", "words"), [("13.0", "is of CUDA 13.0, and the driver loads"), ("12.9", None)])
def test_an_assembler_newer_than_the_driver_is_told(
    release: str, words: str | None, machine: Machine, tmp_path: Path
) -> None:
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.48'\n")
    ptxas.chmod(0o755)
    machine.nvml(cuda=12040)
    machine.patch.setenv("TRITON_PTXAS_PATH", str(ptxas))
    machine.patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    said = ptxas_problem(CPU)
    assert said is None if words is None else words in str(said)
    machine.nvml(cuda=13000)
    assert ptxas_problem(CPU) is None


@pytest.mark.parametrize(("devices", "mib", "told"), [(2, 64, True), (2, 2048, False), (1, 64, False)])
def test_a_small_shared_memory_is_told_to_workers_with_several_gpus(
    devices: int, mib: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=mib, f_frsize=2**20))
    said = shared_memory_problem(devices)
    assert (said is not None) is told
    assert said is None or said.startswith("/dev/shm has 64 MiB, and GPUs that draw one image together exchange")
