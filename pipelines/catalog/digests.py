"""SHA-256 sums of whole checkpoints, by which several servers know that they draw with the same weights.

A file is read once: its sum is remembered until its size or its time of change is another.
"""

import hashlib
import json
from pathlib import Path

from pipelines.catalog.manifest import checkpoint_files, sha256_of


class Digests:
    """`memory` is the file in which the sums are kept."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory

    def of(self, checkpoint: Path) -> str:
        """Of all its files with their names, or of a single file. Blocking: reads what has changed. Raises OSError."""
        known = self._read()
        lines = []
        for file in checkpoint_files(checkpoint):
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns]
            if (found := known.get(str(file))) is None or found[:2] != state:
                found = known[str(file)] = [*state, sha256_of(file)]
            lines.append(f"{found[2]}  {file.relative_to(checkpoint)}\n")
        self._write(known)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _read(self) -> dict[str, list[int | str]]:
        try:
            known: dict[str, list[int | str]] = json.loads(self._memory.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return known

    def _write(self, known: dict[str, list[int | str]]) -> None:
        text = json.dumps(known)
        if not self._memory.exists() or self._memory.read_text() != text:
            part = self._memory.with_suffix(".part")
            part.write_text(text)
            part.replace(self._memory)
