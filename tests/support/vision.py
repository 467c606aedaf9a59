"""torchvision for tests, where the installed torch has no build of it: `python -m tests.support.vision FOLDER` prepares
it, and prints the folder to put on PYTHONPATH (nothing if torchvision is installed and works).

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


def works() -> bool:
    """Whether torchvision is installed, and its operators fit torch."""
    command = [sys.executable, "-c", "import torchvision"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def prepare(folder: Path) -> None:
    """Install it into a folder of its own, with its operators declared."""
    first = folder / "torchvision" / "__init__.py"
    if not first.is_file():
        pinned = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torchvision=="))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), pinned], check=True)
    text = first.read_text()
    if not text.startswith(DECLARED):
        first.write_text(DECLARED + text)


if __name__ == "__main__":
    if not works():
        prepare(Path(sys.argv[1]))
        print(Path(sys.argv[1]).resolve())
