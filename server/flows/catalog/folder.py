"""The catalog of a server that is the only one: its files are the catalog, and a file of its home has the swaps that
can be undone."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from server.accounts.catalogs import Edit
from server.catalog.images import CatalogError
from server.flows.catalog.edit import write_text
from server.flows.catalog.files import parse, read_files
from server.flows.catalog.switch import CatalogDiff, CatalogSwitch, Prepared, Send
from server.flows.catalog.update import Change, Files, MakeChange, to_bad_request

log = structlog.stdlib.get_logger("darkroom.swap")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A change whose checkpoints are loaded, from these files and edits."""

    files: Files
    edits: Sequence[Edit]
    change: Change
    prepared: Prepared


class FolderCatalog:
    """Serves the catalog in the folder `model_configs`, and writes swaps into it. `history` is the file of the swaps
    that can be undone."""

    def __init__(self, switch: CatalogSwitch, history: Path, *, model_configs: Path, weights: Path) -> None:
        self._switch = switch
        self._history = history
        self._model_configs = model_configs
        self._weights = weights
        self._on_disk: Files = {}  # at the latest change
        self._unsaved: dict[str, tuple[str, str]] = {}  # of a read-only folder: the text of a file, and what is served

    async def change(self, make: MakeChange, send: Send) -> CatalogDiff:
        """Serve the content that `make` returns, then write it into the folder. Raises ApiError, and then nothing has
        changed.

        Sums take as long as a disk does, so other changes need not wait for them: where sums are published, the weights
        are served once they are the same, and if another change came first, this one is made anew; else they are served
        at once, and the sums are only told.
        """
        while True:
            async with self._switch.catalog.lock:
                begun = await self._begin(make, send)
                if not await asyncio.to_thread(begun.prepared.hashing.has_published_sums):
                    diff = await self._serve(begun, send)
                    send("hashing")
                    break
            send("hashing")
            await self._compare_sums(begun.prepared)
            async with self._switch.catalog.lock:
                if self._switch.keeps(begun.prepared) and await asyncio.to_thread(self._read) == begun.files:
                    diff = await self._serve(begun, send)
                    break
        return replace(diff, loaded=await begun.prepared.loaded())

    async def _begin(self, make: MakeChange, send: Send) -> "_Begun":
        """Make the change of the files as they are, and load what is new. Raises ApiError."""
        send("inspecting")
        try:
            files, edits = await asyncio.to_thread(self._read), await asyncio.to_thread(self._edits)
            change = await asyncio.to_thread(make, files, edits)
            after = await asyncio.to_thread(parse, change.files, self._model_configs, self._weights)
        except CatalogError as error:
            raise to_bad_request(error) from error
        send("loading")
        return _Begun(files, edits, change, await self._switch.prepare(after))

    async def _compare_sums(self, prepared: Prepared) -> None:
        """Wait until the sums are those that are published. Raises BadRequest if one is not."""
        try:
            await prepared.compare_sums()
        except BaseException:
            async with self._switch.catalog.lock:
                if self._switch.keeps(prepared):
                    self._switch.drop()
            raise

    async def _serve(self, begun: "_Begun", send: Send) -> CatalogDiff:
        diff = self._switch.switch(begun.prepared)
        send("writing")
        saved = await asyncio.to_thread(self._write, begun.change, begun.edits)
        return replace(diff, keys=begun.change.keys, saved=saved)

    def _read(self) -> Files:
        """Return the files as they are, with the swaps that could not be written into them. Raises CatalogError."""
        self._on_disk = read_files(self._model_configs)
        served = {name: after for name, (before, after) in self._unsaved.items() if self._on_disk.get(name) == before}
        return {**self._on_disk, **served}

    def _write(self, change: Change, edits: Sequence[Edit]) -> bool:
        """Write the files that a swap or an undo changed. Returns whether the next start serves them too: the folder
        may be read-only."""
        new = {name: text for name, text in change.files.items() if self._on_disk.get(name, text) != text}
        self._unsaved = {}
        try:
            for name, text in new.items():
                write_text((self._model_configs / name).resolve(), text)  # a symbolic link stays one
            if change.edits != tuple(edits):
                write_text(self._history, json.dumps([asdict(edit) for edit in change.edits]))
        except OSError as error:
            message = "the catalog's files can't be written: the change is lost at the next restart"
            log.warning(message, folder=str(self._model_configs), error=str(error))
            self._unsaved = {name: (self._on_disk[name], text) for name, text in new.items()}
        return not self._unsaved

    def _edits(self) -> Sequence[Edit]:
        try:
            edits = [Edit(**edit) for edit in json.loads(self._history.read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return ()
        return [replace(edit, source=Path(edit.source).name) for edit in edits]  # older ones have whole paths
