"""Peak memory of one picture by size: two-pass drawing must not take memory by the square of the side.

Each size is drawn in a process of its own. On a GPU it is the allocator's peak, on a CPU the process's peak resident
size, both over what is held once the checkpoint is loaded. Read the last column: 4K may cost its own canvas more than
1K (four bytes for each of its pixels or so), and no more.

    python benchmarks/memory.py [CHECKPOINT] [--steps 4]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from pipelines.types import CheckpointSpec, Encoding, ImageJob  # noqa: E402

SIZES = {"1K": (1024, 1024), "1K, widest": (1920, 960), "2K": (2048, 2048), "4K": (3840, 2160)}
MIB = 1024 * 1024


def main() -> None:
    """The table, or one of its rows when called with --size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a diffusers folder; default: starter-alpha")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size:
        print(json.dumps(measure(arguments.checkpoint, *SIZES[arguments.size], arguments.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or build(Path(folder))
        rows = {size: in_a_process(checkpoint, size, arguments.steps) for size in SIZES}
    show(checkpoint.name, rows)


def build(folder: Path) -> Path:
    """An untrained starter-alpha: what it draws is noise, what it takes is not."""
    from pipelines.starter.build import build_starters

    build_starters(folder)
    return folder / "starter-alpha"


def in_a_process(checkpoint: Path, size: str, steps: int) -> dict[str, float]:
    """`measure` where nothing was drawn before: a peak can only rise."""
    command = [sys.executable, __file__, str(checkpoint), "--size", size, "--steps", str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(path: Path, width: int, height: int, steps: int) -> dict[str, float]:
    """Draw one picture. Returns the loaded size and the peak in bytes, the seconds, and the denoising steps."""
    from pipelines.quiet import quiet_libraries

    quiet_libraries()
    import torch

    from pipelines.checkpoints import load_checkpoint
    from pipelines.diffusion import Drawing

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = CheckpointSpec(path.name, path, None, "alpha", "img2img", 1)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    drawing = Drawing(load_checkpoint(spec, device), _job(spec, width, height, steps), count)
    loaded = _peak_bytes()  # so far: loading itself peaks above the weights
    began = time.perf_counter()
    drawing.draw(0)
    return {"loaded": loaded, "peak": _peak_bytes(), "seconds": time.perf_counter() - began, "steps": done}


def _peak_bytes() -> float:
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _job(spec: CheckpointSpec, width: int, height: int, steps: int) -> ImageJob:
    return ImageJob(
        id="memory",
        checkpoint=spec,
        prompt="a red boat at sunset",
        negative_prompt="",
        width_px=width,
        height_px=height,
        n=1,
        steps=steps,
        guidance=4.0,
        strength=0.6,
        seed=1,
        references=(),
        mask=None,
        encoding=Encoding(),
        metadata={},
        time_limit_s=3600,
    )


def show(name: str, rows: dict[str, dict[str, float]]) -> None:
    """The table, then the same as one line of JSON."""
    from rich.console import Console
    from rich.table import Table

    table = Table("Size", "Pixels", "Loaded", "Peak", "Over loaded", "Against 1K", "Steps", "Time", title=name)
    first = rows["1K"]["peak"] - rows["1K"]["loaded"]
    for size, row in rows.items():
        width, height = SIZES[size]
        over = row["peak"] - row["loaded"]
        table.add_row(
            f"{size} {width}x{height}",
            f"{width * height / (1024 * 1024):.2f} x",
            f"{row['loaded'] / MIB:.0f} MiB",
            f"{row['peak'] / MIB:.0f} MiB",
            f"{over / MIB:.0f} MiB",
            f"{over / first:.2f} x",
            f"{row['steps']:.0f}",
            f"{row['seconds']:.1f} s",
        )
    Console().print(table)
    print(json.dumps({size: round((row["peak"] - row["loaded"]) / MIB) for size, row in rows.items()}))


if __name__ == "__main__":
    main()
