"""The command of a child process in Python, whose modules are Darkroom's own, whatever folder it starts in.

This file is also what the process runs: `python -P python_command.py MODULE ...` is `python -m MODULE ...` with the
folder of `server/` and `pipelines/` in place of the current folder, which may have a `server.py` or a `PIL.py`.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of the code that this process runs."""
    return [sys.executable, "-P", __file__, module, *map(str, arguments)]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
