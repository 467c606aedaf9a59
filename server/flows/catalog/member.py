"""A gateway's part in the catalog of all: it prepares another one's proposal, and serves the recorded version.

The recorded version decides. So nothing depends on a message that is lost: each gateway looks at the database when it
is told to, and every few seconds.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog
from pydantic import BaseModel

from pipelines.checkpoints.folder.sums import Digests
from server.accounts.catalogs import CatalogContent, CatalogStore, CatalogVersion, Edit
from server.catalog.images import Catalog, CatalogError
from server.errors import ApiError, BadRequest, Conflict
from server.flows.catalog.files import compare_checksums, parse, weight_checksums, with_sums, write_files
from server.flows.catalog.switch import CatalogDiff, CatalogSwitch, Prepared
from server.flows.catalog.update import to_bad_request

log = structlog.stdlib.get_logger("darkroom.catalog")


class Proposal(BaseModel, frozen=True):
    """A version that a gateway would have all others serve too, as it is sent to them."""

    change: str
    version: int
    files: Mapping[str, str]
    weights: Mapping[str, str] = {}
    edits: tuple[Edit, ...] = ()

    @property
    def content(self) -> CatalogContent:
        """Return the content of the version."""
        return CatalogContent(self.files, self.weights, self.edits)


class CatalogMember:
    """This gateway's part in the catalog of all. `version` is the one that it serves; `problem` says why it can't serve
    the current one."""

    def __init__(
        self,
        switch: CatalogSwitch,
        store: CatalogStore,
        digests: Digests,
        *,
        version: int,
        model_configs: Path,
        weights: Path,
    ) -> None:
        self._switch = switch
        self._store = store
        self._digests = digests
        self._model_configs = model_configs
        self._weights = weights
        self.version = version
        self.problem: str | None = None
        self.current = version  # by the last look at the database
        self._recorded_version = 0  # the version of which the database and the files know
        self._prepared: tuple[Proposal, Prepared] | None = None

    @property
    def is_current(self) -> bool:
        """Return whether this gateway serves the version that the others do."""
        return self.version >= self.current

    async def prepare(self, proposal: Proposal) -> None:
        """Load the checkpoints that the proposal names, and keep them until `settle`. Raises ApiError, and then nothing
        has changed."""
        await self.settle()
        async with self._switch.catalog.lock:
            if proposal.version != self.version + 1:
                reason = self.problem or "the catalog has been changed meanwhile"
                raise Conflict(f"Nothing has changed: this server serves version {self.version}; {reason}.", 10)
            known, prepared = self._prepared or (None, None)
            is_loaded = known is not None and (known.change, known.files) == (proposal.change, proposal.files)
            if prepared is None or not is_loaded or not self._switch.keeps(prepared):
                prepared = None
            elif prepared.catalog != await self._with_sums(await self._parse(proposal.files)):
                prepared = None  # its files had not been read for their sums when it was loaded
            if prepared is None:
                self._drop()
                prepared = await self._load(proposal.content)
            self._prepared = proposal, prepared

    async def load(self, change: str, files: Mapping[str, str]) -> None:
        """Load the checkpoints that a change's files name, then compare their sums with those that are published: what
        can't be loaded is refused before any server reads it for its sum. Raises ApiError; `settle` drops them."""
        async with self._switch.catalog.lock:
            self._drop()
            after = await self._with_sums(await self._parse(files), only_known=True)
            prepared = await self._switch.prepare(after)
            proposal = Proposal(change=change, version=self.version + 1, files=files)
            self._prepared = proposal, prepared
        await prepared.compare_sums()

    async def settle(self) -> CatalogDiff | None:
        """Serve the current version, and drop the checkpoints of a proposed version that was not recorded. Returns the
        changes for callers; None if there are none. Raises DatabaseBusy; other failures are kept as the `problem`, and
        the next call tries again."""
        async with self._switch.catalog.lock:
            self.current = await self._store.in_reader(self._store.current_number)
            diff = None
            if self.current > self.version:
                current = await self._store.in_reader(self._store.current)
                if current is not None:
                    diff = await self._serve(current)
            elif self._prepared is not None:
                change = self._prepared[0].change
                if not await self._store.in_reader(self._store.is_in_progress, change):
                    self._drop()
            if self._recorded_version != self.version:
                await self._record()
            return diff

    async def _serve(self, current: CatalogVersion) -> CatalogDiff | None:
        proposal, prepared = self._prepared or (None, None)
        try:
            if prepared is None or proposal is None or proposal.files != current.content.files:
                self._drop()
                prepared = await self._load(current.content)
        except ApiError as error:
            self.problem = error.message
            log.warning("this server can't serve the cluster's catalog", version=current.version, reason=error.message)
            return None
        self._prepared, self.problem = None, None
        self.version = current.version
        return replace(self._switch.switch(prepared), loaded=await prepared.loaded())

    def _drop(self) -> None:
        if self._prepared is not None:
            self._prepared = None
            self._switch.drop()

    async def _parse(self, files: Mapping[str, str]) -> Catalog:
        try:
            return await asyncio.to_thread(parse, files, self._model_configs, self._weights)
        except CatalogError as error:
            raise to_bad_request(error) from error

    async def _with_sums(self, after: Catalog, *, only_known: bool = False) -> Catalog:
        try:
            return await asyncio.to_thread(with_sums, after, self._digests, only_known=only_known)
        except (CatalogError, OSError) as error:
            raise BadRequest(f"Nothing has changed: {error}.", code="checkpoint_failed") from error

    async def _load(self, content: CatalogContent) -> Prepared:
        after = await self._parse(content.files)
        try:
            compare_checksums(
                await asyncio.to_thread(weight_checksums, after, self._weights, self._digests), content.weights
            )
        except CatalogError as error:
            raise BadRequest(f"Nothing has changed: {error}.", code="checkpoint_failed") from error
        prepared = await self._switch.prepare(await self._with_sums(after))
        try:
            await prepared.compare_sums()  # these sums are known: the servers have compared them
        except ApiError:
            self._switch.drop()
            raise
        return prepared

    def checksums_of(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the SHA-256 of the weights that these catalog files name, by their paths. Blocking. Raises
        CatalogError."""
        return weight_checksums(parse(files, self._model_configs, self._weights), self._weights, self._digests)

    async def _record(self) -> None:
        """Record in the database which version is served, and write its files to the catalog's folder, except those
        that somebody edited."""
        await self._store.in_writer(self._store.record_served_version, self.version)
        current = await self._store.in_reader(self._store.current)
        if current is not None and current.version == self.version:
            known = await self._store.in_reader(self._store.known_files)
            edited = await asyncio.to_thread(write_files, self._model_configs, current.content.files, known)
            if edited:
                message = "catalog files here are not those that the cluster serves: `darkroom reload` makes them that"
                log.warning(message, folder=str(self._model_configs), files=edited, version=self.version)
            self._recorded_version = self.version
