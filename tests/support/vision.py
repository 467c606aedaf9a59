"""What some families need beside the set-up, torchvision above all: `python -m tests.support.vision FOLDER` prepares
it, and prints the folder to put on PYTHONPATH (nothing if all of it is installed and works).

PyPI's builds are for torch with CUDA. On a torch for CPUs, their compiled operators don't load, and then the package
does not either. Those are operators of detection models; the image processors of FLUX.2 [dev], Qwen-Image-Edit and
vision chat models use none. So they are declared here, without code.
"""

import subprocess
import sys
from pathlib import Path

DECLARED = """\
import torch as _torch

_operators = _torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
OTHERS = ("sentencepiece", "ftfy", "wcwidth")  # of Kolors, and of PRX; the last is of ftfy


def works(package: str) -> bool:
    """Whether it is installed, and fits the other packages."""
    command = [sys.executable, "-c", f"import {package}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def prepare(folder: Path, package: str) -> None:
    """Install it into a folder of its own."""
    if not (folder / package).is_dir():
        pinned = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{package}==")]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), *(pinned or [package])], check=True)


def declare_operators(first: Path) -> None:
    """Declare torchvision's operators in its first file."""
    text = first.read_text()
    if not text.startswith(DECLARED):
        first.write_text(DECLARED + text)


if __name__ == "__main__":
    missing = [package for package in ("torchvision", *OTHERS) if not works(package)]
    for each in missing:
        prepare(Path(sys.argv[1]), each)
    if "torchvision" in missing:
        declare_operators(Path(sys.argv[1]) / "torchvision" / "__init__.py")
    if missing:
        print(Path(sys.argv[1]).resolve())
