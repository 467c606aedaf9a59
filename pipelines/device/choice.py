"""Which device a worker computes on."""

import torch

from pipelines.protocol.engine import NoDevice
from pipelines.protocol.messages import DeviceChoice


def choose_device(choice: DeviceChoice) -> torch.device:
    """Return the device of a choice: `auto` is a GPU where there is one. Raises NoDevice for "cuda" without one: on a
    CPU, in float32, a checkpoint for a GPU would take minutes for a step and twice the memory."""
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    raise NoDevice(f"no GPU can be used: {_why_no_cuda()}")


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for the CPU alone"
    try:
        torch.zeros((), device="cuda")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and finds no device"


def describe(device: torch.device, count: int = 1) -> str:
    """Describe the device for people: the GPU's name, or the CPU and its threads; of a worker with several, how many it
    has."""
    if device.type == "cuda":
        count = min(count, torch.cuda.device_count())
        return f"{f'{count} x ' if count > 1 else ''}{torch.cuda.get_device_name(device)} (cuda)"
    threads = f"{torch.get_num_threads()} threads"
    return f"the CPU ({count} processes of {threads})" if count > 1 else f"the CPU ({threads})"
