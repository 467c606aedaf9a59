"""The sums of new checkpoints' weights, which are read while these load and, where nothing has to wait for them, after
that."""

import asyncio
import threading
from collections.abc import Sequence

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.sums import Digests, describe, has_published_sums
from pipelines.protocol.images import CheckpointSpec


class _Stopped(Exception):
    """Nobody waits for the sums any more."""


class Hashing:
    """Describes checkpoints, each of whose weights is read in a thread. It begins at once."""

    def __init__(self, specs: Sequence[CheckpointSpec], digests: Digests) -> None:
        self.specs = specs
        self._digests = digests
        self._stopped = threading.Event()
        self._task = asyncio.create_task(asyncio.to_thread(self._describe))

    async def has_published_sums(self) -> bool:
        """Return whether somebody has published a sum of the weights: one that is another must not be served."""
        return await asyncio.to_thread(self._has_published_sums)

    async def descriptions(self) -> dict[CheckpointSpec, str]:
        """Wait for the descriptions. Raises CheckpointError for weights whose sum is not the published one."""
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """End the reading, within a block of a file."""
        self._stopped.set()
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    def _has_published_sums(self) -> bool:
        try:
            return any(has_published_sums(spec) for spec in self.specs)
        except (CheckpointError, OSError):  # a file is gone since it was loaded
            return False

    def _describe(self) -> dict[CheckpointSpec, str]:
        try:
            return {spec: describe(spec, self._digests, self._check_stopped) for spec in self.specs}
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from error

    def _check_stopped(self, _: int) -> None:
        if self._stopped.is_set():
            raise _Stopped
