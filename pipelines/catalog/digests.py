"""SHA-256 sums of checkpoints, by which operators, and several servers, know with which weights they draw.

A file is read once: its sum is remembered until its size or a time of change is another.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pipelines.catalog.manifest import checkpoint_files, sha256_of


class Digests:
    """`memory` is the file in which the sums are kept."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory

    def of(self, checkpoint: Path) -> str:
        """Of all its files with their names, or of a single file. Blocking: reads what has changed. Raises OSError."""
        files = checkpoint_files(checkpoint)
        lines = [
            f"{sum_}  {file.relative_to(checkpoint)}\n" for file, sum_ in zip(files, self.of_files(files), strict=True)
        ]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def of_files(self, files: Sequence[Path]) -> list[str]:
        """Of each. Blocking: reads what has changed. Raises OSError."""
        known = self._read()
        sums = []
        for file in files:
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            if (found := known.get(str(file))) is None or found[:-1] != state:
                found = known[str(file)] = [*state, sha256_of(file)]
            sums.append(str(found[-1]))
        self._write({name: found for name, found in known.items() if Path(name).exists()})
        return sums

    def _read(self) -> dict[str, list[int | str]]:
        try:
            known: dict[str, list[int | str]] = json.loads(self._memory.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return known

    def _write(self, known: dict[str, list[int | str]]) -> None:
        text = json.dumps(known)
        with contextlib.suppress(OSError):  # such as a full disk: the files are read again next time
            if not self._memory.exists() or self._memory.read_text() != text:
                part = self._memory.with_suffix(".part")
                part.write_text(text)
                part.replace(self._memory)
