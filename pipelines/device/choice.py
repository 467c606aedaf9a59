"""Which device a worker computes on. A GPU that is there and does not compute is never replaced by the CPU."""

import re
from typing import Final

import torch

from pipelines.device.driver import Driver, are_hidden, kernel_cards, read_driver
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.machine import IN_A_CONTAINER, UNDER_WSL, is_wsl
from pipelines.protocol.messages import DeviceChoice

DRIVER_OF_CUDA: Final = {11: "450", 12: "525", 13: "580"}  # the least, by CUDA's major version
TOO_OLD: Final = re.compile(r"driver on your system is too old \(found version (\d+)\)")
NUMBERED: Final = re.compile(r"\bError (\d+: .+)")  # what the driver said, behind advice of torch's
SENTENCE_END: Final = re.compile(r"\.(?:\s+(?=[A-Z])|\s*$)|\n")
ON_THE_CPU: Final = "DARKROOM_DEVICE=cpu draws on the CPU."
RESTART: Final = "Restart the machine: the driver was upgraded, and the kernel still runs the older one"
# What CUDA says at its start, and what mends it
REMEDIES: Final = (
    ("system not yet initialized", "Start NVIDIA's fabric manager: `sudo systemctl start nvidia-fabricmanager`"),
    ("unsupported display driver / cuda driver combination", RESTART),
    ("forward compatibility was attempted on non supported HW",
     "Install a driver for this CUDA on the host: the compatibility libraries of the container don't work with this "
     "GPU"),
    ("unknown error", "Stop all that uses a GPU, this server too, and load the driver's module again (`sudo rmmod "
     "nvidia_uvm; sudo modprobe nvidia_uvm`, which mends a suspend), or restart the machine"),
    ("no NVIDIA driver", f"Install NVIDIA's driver. {IN_A_CONTAINER}"),
    ("no CUDA-capable device", f"CUDA_VISIBLE_DEVICES may name none that is there. {IN_A_CONTAINER}"),
    ("No CUDA GPUs are available", f"CUDA_VISIBLE_DEVICES may name none that is there. {IN_A_CONTAINER}"),
)  # fmt: skip


def choose_device(choice: DeviceChoice) -> torch.device:
    """Return the device of a choice: `auto` is a GPU where there is one. Raises NoDevice for a GPU that is there, or
    was asked for, and can't be used: on a CPU, in float32, a checkpoint for a GPU would take minutes for a step and
    twice the memory."""
    if choice == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    driver = read_driver()
    is_broken = driver.installed and driver.failure is not None and bool(kernel_cards())
    if choice == "auto" and (are_hidden() or not (driver.cards or is_broken)):
        return torch.device("cpu")
    cards = [card.name for card in driver.cards] or kernel_cards()
    raise NoDevice(f"no GPU can be used: {why_no_cuda(driver, cards)} {ON_THE_CPU}")


def why_no_cuda(driver: Driver, cards: list[str]) -> str:
    """Return why CUDA finds no GPU, and what mends it, in sentences."""
    if torch.version.cuda is None and torch.version.hip is None:
        there = f"there is {', '.join(cards)}" if cards else "it sees no GPU"
        return (
            f"torch {torch.__version__} is built for the CPU alone, and {there}. Install the torch for CUDA in its "
            f"place: `pip install --force-reinstall torch=={torch.__version__.partition('+')[0]}`, from an index that "
            "isn't of builds for CPUs."
        )
    said = _said_by_cuda()
    too_old = TOO_OLD.search(said)
    if is_wsl():  # where Linux has no driver of its own, and no module
        return f"{_too_old(int(too_old[1]), driver) if too_old else f'{said}.'} {UNDER_WSL}"
    if not driver.installed and cards:
        return (
            f"there is {', '.join(cards)}, but not the driver's libraries. {IN_A_CONTAINER}; else install the driver."
        )
    if too_old:
        return _too_old(int(too_old[1]), driver)
    if driver.failure is not None and driver.installed:
        said = f"{said} (NVML: {driver.failure})"
        if "version mismatch" in driver.failure:
            return f"{said}. {RESTART}."
    remedy = next((remedy for words, remedy in REMEDIES if words in said), "`nvidia-smi` may say more")
    return f"{said}. {remedy}."


def _said_by_cuda() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
    except (RuntimeError, AssertionError) as error:
        numbered = NUMBERED.search(str(error))
        return f"CUDA error {numbered[1]}" if numbered else SENTENCE_END.split(str(error).strip())[0]
    return f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and finds no device"


def _too_old(found: int, driver: Driver) -> str:
    """Say which driver this torch needs. CUDA's libraries run with drivers of their own major version or a newer."""
    major = int(str(torch.version.cuda).partition(".")[0])
    own = f"driver {driver.version}" if driver.version else "driver"
    least = f"driver {DRIVER_OF_CUDA[major]} or newer" if major in DRIVER_OF_CUDA else "a newer driver"
    return (
        f"NVIDIA's {own} is too old for this torch: it runs CUDA {found // 1000}.{found % 1000 // 10}, and torch "
        f"{torch.__version__} is built for CUDA {torch.version.cuda}. Install {least}, or a torch that is built for "
        f"CUDA {found // 1000}."
    )


def describe(device: torch.device, count: int = 1) -> str:
    """Describe the device for people: the GPU's name, or the CPU and its threads; of a worker with several, how many it
    has."""
    if device.type == "cuda":
        count = min(count, torch.cuda.device_count())
        return f"{f'{count} x ' if count > 1 else ''}{torch.cuda.get_device_name(device)} (cuda)"
    threads = f"{torch.get_num_threads()} threads"
    return f"the CPU ({count} processes of {threads})" if count > 1 else f"the CPU ({threads})"
