"""What is wrong with a machine, found before anything is loaded: a sentence each, with what mends it.

A worker asks when it starts. `darkroom doctor` runs this module, which prints the same as JSON:
`python -m pipelines.device.start_checks --devices 1`.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pynvml
import torch

from pipelines.checkpoints.memory.host_bytes import ALLOCATOR_VARIABLES
from pipelines.checkpoints.memory.shares import limit_problem
from pipelines.device.choice import ON_THE_CPU, choose_device, describe
from pipelines.device.driver import Card, are_hidden, kernel_cards, read_driver
from pipelines.device.failures import first_line, is_out_of_memory
from pipelines.device.occupancy import explain_taken
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.machine import IN_A_CONTAINER, UNDER_WSL, is_container, is_wsl
from pipelines.protocol.messages import DeviceChoice

EXPANDABLE, FIXED = "expandable_segments:True", "expandable_segments:False"
WITHOUT_SEGMENTS: Final = (
    "The GPU's memory is allocated without expandable segments, which {}: images of many sizes may leave gaps in it."
)
UNSEEN: Final = (
    "No GPU can be seen from this container, so models run on the CPU. Under WSL nothing shows in a container whether "
    "there is one: if there is, start it with `--gpus all`. If not, DARKROOM_DEVICE=cpu hides this line."
)
LEAST_BYTES: Final = 2**26  # with so much free, an allocation of nothing fails for another reason
BUSY: Final = "busy or unavailable"  # what CUDA says of a GPU that another process has for itself
MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "EXCLUSIVE_THREAD",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "PROHIBITED",
}
BLACKWELL: Final = (10, 0)
ONE_PROCESS: Final = (
    "and one process alone may use it, but image and chat workers are two. Set `sudo nvidia-smi "
    "--compute-mode=DEFAULT`, start NVIDIA's MPS (`nvidia-cuda-mps-control -d`), or put chats on another device: "
    "[chat] in a file that DARKROOM_ENGINES names."
)
MPS_CONTROL: Final = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")  # noqa: S108  # NVIDIA's
SHARED_BYTES: Final = 2**30  # of /dev/shm, for what GPUs exchange without a link of their own
ARCHITECTURE: Final = re.compile(r"(sm|compute)_(\d+)([af]?)$")
RELEASE: Final = re.compile(r"release (\d+)\.(\d+)")
PTXAS_LIMIT_S: Final = 20.0


def check_device(
    device: torch.device, choice: DeviceChoice = "auto", devices: int = 1, weights_bytes: int = 0
) -> tuple[str, ...]:
    """Return what is wrong though a worker can go on, with this device, so many of them, and checkpoints of which the
    largest has weights of `weights_bytes`. Raises NoDevice for a GPU that can't compute."""
    problems: list[str | None] = [limit_problem(weights_bytes)]
    if device.type == "cuda":
        start_cuda()
        check_kernels(range(min(devices, torch.cuda.device_count())))
        problems += [compute_once(device), ptxas_problem(device), shared_memory_problem(devices)]
    elif choice == "auto":
        problems.append(unreached_gpu())
    return tuple(filter(None, problems))


def unreached_gpu() -> str | None:
    """Return why the CPU is used on a machine that has a GPU which programs here can't reach."""
    cards = [] if are_hidden() else kernel_cards()
    if not cards:
        return UNSEEN if is_wsl() and is_container() and not are_hidden() else None
    remedy = UNDER_WSL if is_wsl() else f"{IN_A_CONTAINER}; else install NVIDIA's driver."
    return (
        f"This machine has {', '.join(cards)}, which can't be reached from here, so models run on the CPU. {remedy} "
        "If you want the CPU, set DARKROOM_DEVICE=cpu."
    )


def start_cuda() -> None:
    """Start CUDA, upon which torch reads the settings of its allocator. Raises NoDevice."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
    except (RuntimeError, ValueError) as error:
        why = _why_not(error)
        if "Allocator" in str(error):
            given = next((f"{name}={value}" for name in ALLOCATOR_VARIABLES if (value := os.environ.get(name))), "")
            why = f"torch can't read {given} ({_first_line(error)}). It takes words such as `max_split_size_mb:512`."
        raise NoDevice(f"no GPU can be used: {why} {ON_THE_CPU}") from error


def check_kernels(indices: Sequence[int]) -> None:
    """Check that this torch has kernels for these GPUs. Raises NoDevice."""
    built = [each for each in torch.cuda.get_arch_list() if ARCHITECTURE.match(each)]  # none of a torch for AMD
    for index in indices:
        capability = torch.cuda.get_device_capability(index)
        if built and not has_kernels(capability, built):
            raise NoDevice(_no_kernels(torch.cuda.get_device_name(index), capability, built))


def has_kernels(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Return whether code that was built for these architectures runs on a GPU: a cubin (`sm_`) of its major version
    and not of a later minor one, or PTX (`compute_`) of no later one. Those for one architecture end in `a`."""
    own = 10 * capability[0] + capability[1]
    for kind, digits, ending in (found.groups() for each in built if (found := ARCHITECTURE.match(each))):
        least = int(digits)
        same_major = least // 10 == capability[0]
        if least == own or (least < own and ending != "a" and (same_major or (kind == "compute" and not ending))):
            return True
    return False


def _no_kernels(name: str, capability: tuple[int, int], built: Sequence[str]) -> str:
    own = f"{capability[0]}.{capability[1]}"
    oldest = min(int(found[2]) for each in built if (found := ARCHITECTURE.match(each)))
    is_old = 10 * capability[0] + capability[1] < oldest
    remedy = "an older CUDA (12.6 has Maxwell, Pascal and Volta)" if is_old else "a newer CUDA"
    return (
        f"no GPU can be used: {name} has compute capability {own}, for which torch {torch.__version__} has no kernels "
        f"(it has {', '.join(built)}). Install a torch that is built for {remedy}, or use another GPU. {ON_THE_CPU}"
    )


def compute_once(device: torch.device) -> str | None:
    """Allocate memory and run a kernel on a GPU. Returns a sentence where memory is allocated without expandable
    segments, since they fail here; from then on they are off. Raises NoDevice."""
    try:
        _compute(device)
    except RuntimeError as error:
        is_full = is_out_of_memory(error)
        if is_full and _free_bytes(device, error) < LEAST_BYTES:  # another program has it: a load says so
            return None
        if BUSY in str(error) or not _leave_segments_off() or not _computes(device):
            if is_full:
                return None
            raise NoDevice(f"no GPU can be used: {_why_not(error)} {ON_THE_CPU}") from error
        why = f"fail here ({_first_line(error)})"
        return f"{WITHOUT_SEGMENTS.format(why)} PYTORCH_ALLOC_CONF={FIXED} hides this line."
    if is_wsl() and not any(each in _allocator_settings() for each in (EXPANDABLE, FIXED)):
        why = "many drivers refuse under WSL"
        return (
            f"{WITHOUT_SEGMENTS.format(why)} PYTORCH_ALLOC_CONF={EXPANDABLE} tries them, and {FIXED} hides this line."
        )
    return None


def _free_bytes(device: torch.device, error: RuntimeError) -> int:
    """Return what is free of a GPU. Raises NoDevice where others have so much of it that CUDA can't even start on it,
    and names them."""
    try:
        return torch.cuda.mem_get_info(device)[0]
    except RuntimeError:
        taken = explain_taken(device, torch.cuda.get_device_properties(device).total_memory, 0, 0)
        raise NoDevice(f"no GPU can be used: {_first_line(error)}: {taken}. It is tried again.") from error


def _computes(device: torch.device) -> bool:
    try:
        _compute(device)
    except RuntimeError:
        return False
    return True


def _compute(device: torch.device) -> None:
    torch.ones(2, device=device).sum().item()


def _allocator_settings() -> str:
    return next(filter(None, map(os.environ.get, ALLOCATOR_VARIABLES)), "")


def _leave_segments_off() -> bool:
    """Allocate without expandable segments from now on, in this process and those that it starts. Returns False if they
    are off already."""
    settings = _allocator_settings()
    if EXPANDABLE not in settings:
        return False
    settings = settings.replace(EXPANDABLE, FIXED)
    os.environ.update({name: settings for name in ALLOCATOR_VARIABLES if name in os.environ})
    # torch 2.9 has the older one alone
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change(settings)
    return True


def _why_not(error: Exception) -> str:
    """Say in sentences why a GPU does not compute, and what mends it."""
    said = _first_line(error)
    if BUSY in said:
        mode = next(filter(None, map(_exclusive_mode, read_driver().cards)), "it may be in EXCLUSIVE_PROCESS mode")
        return f"{said}: {mode}, {ONE_PROCESS}"
    return f"{said}. `nvidia-smi` and `dmesg | grep -i -e xid -e nvrm` may say more."


def _first_line(error: BaseException) -> str:
    return first_line(error).rstrip(".")


def exclusive_problem(workers: int) -> str | None:
    """Return what is wrong with a GPU that one process alone may use, where so many workers are to share it."""
    mode = next((each for each in map(_exclusive_mode, read_driver().cards) if each), None)
    return None if workers < 2 or mode is None or MPS_CONTROL.exists() else f"{mode}, {ONE_PROCESS}"


def _exclusive_mode(card: Card) -> str | None:
    return f"{card.name} is in {MODES[card.mode]} mode" if card.mode in MODES else None


def ptxas_problem(device: torch.device) -> str | None:
    """Return what is wrong where the assembler of Triton is of a newer CUDA than the driver: it makes kernels that the
    driver does not load. Within a major version it loads them."""
    assembler = _ptxas(torch.cuda.get_device_capability(device))
    if assembler is None:
        return None
    try:
        said = subprocess.run(
            [assembler, "--version"], capture_output=True, text=True, timeout=PTXAS_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # what needs it says so
    own, release = read_driver().cuda, RELEASE.search(said.stdout)
    if release is None or own == (0, 0) or int(release[1]) <= own[0]:
        return None
    return (
        f"{assembler} is of CUDA {release[1]}.{release[2]}, and the driver loads kernels of CUDA {own[0]}.{own[1]} or "
        'older ("device kernel image is invalid"): `compile` fails, and fp8 is slower. Install a newer driver, or set '
        f"TRITON_PTXAS_PATH to a ptxas of CUDA {own[0]}."
    )


def _ptxas(capability: tuple[int, int]) -> str | None:
    """Return the assembler that Triton takes for a GPU; None without Triton."""
    kind = "ptxas-blackwell" if capability >= BLACKWELL else "ptxas"
    variable = f"TRITON_{kind.upper().replace('-', '_')}_PATH"
    if variable in os.environ:
        return os.environ[variable]
    found = importlib.util.find_spec("triton")
    folders = (
        [Path(each, "backends", "nvidia", "bin") for each in (found.submodule_search_locations or ())] if found else []
    )
    files = (folder / name for folder in folders for name in (kind, "ptxas"))
    return next((str(file) for file in files if file.is_file()), None)


def shared_memory_problem(devices: int, folder: Path = Path("/dev/shm")) -> str | None:  # noqa: S108  # the kernel's
    """Return what is wrong with the memory that the processes of several GPUs share."""
    if devices < 2:
        return None
    found = os.statvfs(folder)
    size = found.f_blocks * found.f_frsize
    if size >= SHARED_BYTES:
        return None
    return (
        f"{folder} has {size / 2**20:.0f} MiB, and GPUs that draw one image together exchange through it by NCCL: give "
        "it 1 GiB (`docker run --shm-size=1g` or `--ipc=host`; in Kubernetes, an emptyDir with `medium: Memory`)."
    )


def main() -> None:
    """Print what a worker of this machine would find, as JSON, for `darkroom doctor`."""
    parser = argparse.ArgumentParser(description="Checks this machine as a worker does at its start.")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that draw one image together")
    parser.add_argument("--workers", type=int, default=1, help="that share a GPU")
    parser.add_argument("--weights-bytes", type=int, default=0, help="of the largest checkpoint")
    options = parser.parse_args()
    device, problems = None, list[str]()
    works = False
    try:
        device = choose_device(options.device)
        problems += check_device(device, options.device, options.devices, options.weights_bytes)
        works = device.type == "cuda" or options.device == "cpu"
        if device.type == "cuda" and (exclusive := exclusive_problem(options.workers)):
            problems, works = [*problems, exclusive], False
    except NoDevice as error:
        problems.append(str(error))
    found = {
        "torch": torch.__version__, "cuda": torch.version.cuda, "problems": problems, "works": works,
        "is_gpu": device is not None and device.type == "cuda",
        "device": device and describe(device, torch.cuda.device_count()),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
