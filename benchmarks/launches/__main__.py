"""`python -m benchmarks.launches [NAME ...]`: what a denoising step launches and moves, eager and as it is served by
default, for published checkpoints at their real sizes, and the seconds that follow for six chips. It needs no GPU, but
a C++ compiler for the simulated one."""

import argparse

from rich.console import Console

from pipelines.device.offline import quiet_libraries
from tests.simulated_gpu import device


def main() -> None:
    """Count the checkpoints that are named, by default all, and print two tables in Markdown."""
    device.install()  # before anything asks torch for CUDA, or imports Triton
    quiet_libraries()
    from benchmarks.launches.passes import DRAWINGS
    from benchmarks.launches.tables import tables

    names = [each.name for each in DRAWINGS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; by default all")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - set(names):
        parser.error(f"no {min(unknown)!r} among {', '.join(names)}")
    for table in tables([each for each in DRAWINGS if each.name in (chosen or names)]):
        Console(width=200).print(table)


if __name__ == "__main__":
    main()
