"""What messages must know of this machine: how this code was installed (a checkout, which a bundle is too, a wheel, or
the image), and whether its Linux is that of Windows, or a container's."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]  # the folder of `pipelines` and `server`
STARTERS: Final = ROOT / "server" / "starters"  # setup.py puts it into the wheel
IN_A_CONTAINER: Final = (
    "In a container, start it with `--gpus all` (NVIDIA's container toolkit; with Podman, "
    "`--device nvidia.com/gpu=all`; in Kubernetes, a limit of nvidia.com/gpu)"
)
UNDER_WSL: Final = (
    "Under WSL the driver is that of Windows: install it there, remove any that is installed in here (it hides that of "
    "Windows), and restart by `wsl --shutdown`. A container needs `--gpus all` there too."
)
DOWNLOADS: Final = "FOLDER"  # stands for one that the operator chooses


def is_wheel() -> bool:
    """Return whether this code was installed from a wheel."""
    return STARTERS.is_dir()


def extra_command(extra: str) -> str:
    """Return how to add an extra of pyproject.toml to this installation; several have a comma between."""
    if is_wheel():
        return f"{sys.executable} -m pip install 'darkroom[{extra}]'"
    if (ROOT / "Makefile").exists():
        return f"make install EXTRAS={extra}"
    return f"docker build with --build-arg EXTRAS=...,{extra}"  # the image has neither a wheel nor the Makefile


def packages_command(packages: Sequence[str]) -> str:
    """Return how to add packages, which no extra has, to this installation."""
    pinned = [] if is_wheel() else ["--constraint", str(ROOT / "constraints.txt")]
    if not is_wheel() and not (ROOT / "Makefile").exists():
        command = shlex.join(["pip", "install", *pinned, *packages])
        return f"docker build of an image FROM this one, with `USER root`, `RUN {command}` and `USER 1000`"
    pip = [sys.executable, "-m", "pip", "install"]
    if any(ROOT.glob("wheels/*.whl")):
        offline = shlex.join([*pip, "--no-index", "--find-links", DOWNLOADS, *pinned, *packages])
        return f"{offline}, with what `pip download {' '.join(packages)}` gets elsewhere in {DOWNLOADS}"
    return shlex.join([*pip, *pinned, *packages])


def is_wsl(root: Path = Path("/")) -> bool:
    """Return whether this is Linux inside Windows (WSL)."""
    try:
        return "microsoft" in (root / "proc/sys/kernel/osrelease").read_text(errors="replace").lower()
    except OSError:
        return False


def is_container(root: Path = Path("/")) -> bool:
    """Return whether this is a container of Docker or Podman."""
    return (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
