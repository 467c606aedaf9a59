"""From a pass that is computed operation by operation to one with fused kernels, while passes go on: they are compiled
in the background, and each is held against the operations that it stands for before it is used.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from pipelines.device.failures import first_line, is_out_of_memory, require_device
from pipelines.device.fusion.planning import plan
from pipelines.device.fusion.program import Program
from pipelines.device.fusion.recording import Record, record


class Fuser:
    """Fuses the operations of one denoiser's passes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.proven: set[str] = set()  # texts of kernels with the bits of their operations
        self.differing: set[str] = set()  # of those with others
        interpreted = os.environ.get("TRITON_INTERPRET", "0") != "0"  # which takes longer than launching
        self.refused: str | None = "TRITON_INTERPRET is set" if interpreted else None  # why nothing is fused

    def record(self, run: Callable[[], Any]) -> tuple[Any, "Fusion | None"]:
        """Run it, and return its output, with the fusion that begins. None if it can't be fused."""
        output, made = record(run)
        return output, None if isinstance(made, str) else Fusion(self, made)

    def refuse(self, why: str) -> None:
        """Fuse nothing from now on."""
        if self.refused is None:
            self.refused = why
            print(f"A denoiser's small operations are not fused, but launched one by one: {why}", file=sys.stderr)


class Fusion:
    """A record whose kernels are being compiled."""

    def __init__(self, fuser: Fuser, made: Record) -> None:
        self._fuser = fuser
        self._record = made
        self._begin()

    def _begin(self) -> None:
        steps = plan(self._record, self._fuser.device, self._fuser.differing)
        self._program = Program(self._record, steps, self._fuser.device)
        self._build = _Build(self._program)
        self._build.start()

    @property
    def is_building(self) -> bool:
        """Return whether kernels are being compiled."""
        return self._build.is_alive()

    def program(self) -> Program | None:
        """Return the program, if all of its kernels are compiled and give the same bits; what has other bits is planned
        anew. Computes a pass on the device. None without kernels."""
        if self._build.error is not None:
            self._fuser.refuse(first_line(self._build.error))
            return None
        if not self._program.fused:
            return None
        try:
            differing = self._program.differing(self._fuser.proven)
        except Exception as error:
            require_device(error, self._fuser.device)
            if is_out_of_memory(error):
                raise
            self._fuser.refuse(first_line(error))
            return None
        if differing:
            self._fuser.differing |= differing
            self._begin()
            return None
        return self._program


class _Build(threading.Thread):
    """Compiles a program's kernels, or finds them in the folder of kernels."""

    def __init__(self, program: Program) -> None:
        super().__init__(name="kernels", daemon=True)
        self._program = program
        self.error: Exception | None = None

    def run(self) -> None:
        """Compile. An error ends it: no compiler, no folder to write to, an assembler newer than the driver."""
        try:
            self._program.build()
        except Exception as error:
            self.error = error


FUSERS: Final[dict[str, Callable[[torch.device], Fuser]]] = {"cuda": Fuser}  # by kind of device
