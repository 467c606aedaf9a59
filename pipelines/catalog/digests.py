"""SHA-256 sums of checkpoints, by which operators, and several servers, know with which weights they draw.

A file is read once: its sum is remembered until its version is another.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipelines.catalog.file_versions import FileVersion, checkpoint_files, loaded_files
from pipelines.catalog.manifest import sha256_of


class Digests:
    """The sums of checkpoints. `memory` is the file in which they are kept."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._writing = threading.Lock()  # several changes read their files at once

    def of(self, checkpoint: Path, send: Callable[[int], None] = lambda _: None) -> str:
        """Return the sum of all files of a checkpoint with their names, or of a single file. Blocking: reads the files
        that have changed, and sends the number of bytes as it goes. Raises OSError."""
        files = checkpoint_files(checkpoint)
        sums = self.of_files(files, send)
        lines = [f"{sum_}  {file.relative_to(checkpoint)}\n" for file, sum_ in zip(files, sums, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def of_files(self, files: Sequence[Path], send: Callable[[int], None] = lambda _: None) -> list[str]:
        """Return the sum of each file. Blocking, and sends, as `of` does. Raises OSError."""
        known, sums = self._read(), []
        for file in files:
            state = list(FileVersion.of(file).state)
            if (found := known.get(str(file))) is None or found[:-1] != state:
                found = [*state, sha256_of(file, send)]
                self._remember(file, found)  # a start that is broken off need not read it again
            sums.append(str(found[-1]))
        return sums

    def version(self, sources: Iterable[Path]) -> str:
        """Return what `files_version` does, of names and sums: the same on each machine that has these files. Blocking,
        as `of`. Raises OSError."""
        named = [(number, *each) for number, source in enumerate(sources) for each in loaded_files(source)]
        sums = self.of_files([file for _, _, file in named])
        lines = [f"{number} {name!r} {sum_}\n" for (number, name, _), sum_ in zip(named, sums, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]

    def unread_bytes(self, checkpoint: Path) -> int:
        """Return how many bytes `of` will read. Raises OSError."""
        known = self._read()
        versions = [FileVersion.of(file) for file in checkpoint_files(checkpoint)]
        return sum(each.bytes for each in versions if known.get(str(each.path), [])[:-1] != list(each.state))

    def _read(self) -> dict[str, list[int | str]]:
        try:
            known: dict[str, list[int | str]] = json.loads(self._memory.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return known

    def _remember(self, file: Path, found: list[int | str]) -> None:
        """Add a sum to those that others have added meanwhile; those of files that are gone are left out."""
        part = self._memory.with_suffix(".part")
        with self._writing, contextlib.suppress(OSError):  # such as a full disk: the files are read again next time
            known = {name: each for name, each in self._read().items() if Path(name).exists()}
            part.write_text(json.dumps(known | {str(file): found}))
            part.replace(self._memory)
