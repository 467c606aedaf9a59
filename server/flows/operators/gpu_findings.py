"""What `darkroom doctor` finds out about GPUs: the driver by nvidia-smi, and what a worker would say when it starts.
All functions block."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipelines.protocol.machine import IN_A_CONTAINER, UNDER_WSL, is_wsl
from pipelines.protocol.python_command import python_command
from server.backends.engines import largest_weights
from server.catalog.images import CatalogError, load_catalog
from server.schemas.status import Finding
from server.settings import Settings

COMMAND_LIMIT_S = 60.0  # importing torch takes seconds, on a slow disk many; and nvidia-smi, on eight GPUs
NVIDIA_SMI: Final = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free", "--format=csv,noheader")
OF_WINDOWS: Final = Path("/usr/lib/wsl/lib/nvidia-smi")  # under WSL, where services and root have no path to it
KERNEL_MODULE: Final = Path("/proc/driver/nvidia/version")
WORKER_CHECKS: Final = "pipelines.device.start_checks"
MOST_SHOWN: Final = 400  # characters of a command's own words
HIDDEN: Final = f"the kernel has NVIDIA's driver, and nvidia-smi is not there. {IN_A_CONTAINER}"
CUDA_BUILD: Final = (
    "Install the torch for CUDA in its place: `pip install --force-reinstall torch`, from an index of such builds"
)
HANGS: Final = "The driver or a GPU hangs: look for Xid in `dmesg`, and restart the machine"
RESTART_CONTAINER: Final = (
    "In a container, restart it: the host has taken its devices away (as `systemctl daemon-reload` does). Else restart "
    "the machine"
)
AGAIN: Final = "Install the driver again"
LOST_CARD: Final = "Restart the machine. If it comes again, look for Xid in `dmesg`, and at the card's power and slot"
# What nvidia-smi says of a driver or a GPU that does not work, and what mends it
REMEDIES: Final = (
    ("Driver/library version mismatch", "Restart the machine: the driver was upgraded, and the kernel still runs the "
     "older one"),
    ("is lost", LOST_CARD),
    ("fallen off the bus", LOST_CARD),
    ("No devices were found", "Look for NVRM in `dmesg`: the card may have no power, or not be passed to this virtual "
     "machine"),
    ("couldn't communicate with the NVIDIA driver", "Load the kernel's module (`sudo modprobe nvidia`). If that fails, "
     "install the driver again for this kernel"),
    ("Insufficient Permissions", "Add the server's user to the group that owns /dev/nvidia*"),
    ("Unknown Error", RESTART_CONTAINER),
    ("Failed to initialize NVML", RESTART_CONTAINER),
)  # fmt: skip


def gpu_findings(settings: Settings) -> list[Finding]:
    """Look for the driver, and then try what a worker would compute on."""
    driver = _driver(settings)
    return [driver, _worker(settings, has_driver=bool(driver.ok))]


def _driver(settings: Settings) -> Finding:
    """Look for the driver by nvidia-smi, whose own words are repeated where it fails."""
    wrong = None if settings.device == "cpu" else False
    try:
        command, *options = NVIDIA_SMI
        status, said, errors = _run([shutil.which(command) or str(OF_WINDOWS), *options])
    except FileNotFoundError:
        if KERNEL_MODULE.exists():
            return Finding(name="driver", ok=wrong, detail=HIDDEN)
        absent = False if settings.device == "cuda" else None
        remedy = f". {UNDER_WSL}" if is_wsl() else ""
        return Finding(name="driver", ok=absent, detail=f"nvidia-smi is not there: no NVIDIA driver{remedy}")
    except OSError as error:
        return Finding(name="driver", ok=wrong, detail=f"nvidia-smi can't be run: {error.strerror}")
    said = "; ".join(filter(None, (said, errors)))
    if status is None:
        hangs = UNDER_WSL if is_wsl() else HANGS
        also = f", but said: {said}" if said else ""
        return Finding(
            name="driver", ok=wrong, detail=f"nvidia-smi has not answered for {COMMAND_LIMIT_S:g} s{also}. {hangs}"
        )
    remedies = (remedy for words, remedy in REMEDIES if words.lower() in said.lower())
    mends = next(remedies, None)
    if is_wsl() and (status or mends):  # where Linux has no module to load, and Windows' command restarts it
        mends = UNDER_WSL
    if status == 0 and said and mends is None:
        return Finding(name="driver", ok=True, detail=said)
    says = f"nvidia-smi says: {said.rstrip('.')}" if said else "nvidia-smi says nothing"
    ended = f" (exit status {status})" if status else ""
    return Finding(name="driver", ok=wrong, detail=f"{says}{ended}. {mends or AGAIN}")


def _worker(settings: Settings, *, has_driver: bool) -> Finding:
    """Have the checks made with which a worker begins, for the models of the catalog."""
    options: dict[str, object] = {"device": settings.device}
    with suppress(CatalogError):  # another check says so
        catalog = load_catalog(settings.model_configs, settings.weights)
        options["devices"] = max((spec.runtime.gpus for spec in catalog.checkpoints), default=1)
        options["weights-bytes"] = largest_weights(catalog)
        options["workers"] = 2 if catalog.chat.checkpoints and settings.engines == "auto" else 1
    try:
        command = python_command(WORKER_CHECKS, *(f"--{name}={value}" for name, value in options.items()))
        status, said, errors = _run(command)
    except OSError as error:  # such as of another user's Python
        return Finding(name="cuda", ok=False, detail=f"{error.filename} can't be run: {error.strerror}")
    if status != 0:
        ended = f"it has not answered for {COMMAND_LIMIT_S:g} s" if status is None else errors[-MOST_SHOWN:]
        detail = f"torch can't be used: {ended}. Install Darkroom's requirements again"
        return Finding(name="cuda", ok=False, detail=detail)
    found = json.loads(said)
    cuda = found["cuda"]
    built = f"torch {found['torch']} for {f'CUDA {cuda}' if cuda else 'CPUs'}"
    seen = f"{built} sees {found['device'] if found['is_gpu'] else 'no GPU'}"
    if found["problems"]:
        ok = None if found["works"] else False
        return Finding(name="cuda", ok=ok, detail=f"{seen}: {' '.join(found['problems'])}")
    if found["is_gpu"] or settings.device == "cpu":
        return Finding(name="cuda", ok=True if found["is_gpu"] else None, detail=seen)
    if cuda is None:
        why = "this torch is for CPUs" + (f". {CUDA_BUILD}" if has_driver else "")
    else:
        why = "the driver is missing, or older than this CUDA"
    return Finding(name="cuda", ok=False if has_driver else None, detail=f"{seen}: {why}")


def _run(command: Sequence[str]) -> tuple[int | None, str, str]:
    """Run a command, and return its exit status, and what it has printed on stdout and stderr, in a line each. The
    status is None for one that does not end: it is killed, and not waited for, as a driver may hold it. Raises
    OSError."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed = process.communicate(timeout=COMMAND_LIMIT_S)
        return process.returncode, _one_line(printed[0]), _one_line(printed[1])
    except subprocess.TimeoutExpired as expired:
        process.kill()
        return None, _one_line(expired.stdout), _one_line(expired.stderr)


def _one_line(printed: bytes | None) -> str:
    lines = (printed or b"").decode(errors="replace").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())
