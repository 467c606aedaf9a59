"""A catalog and weights that a test may change."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.sums import Digests
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.images import CheckpointSpec
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.upstream import UpstreamClient
from server.backends.worker_pool import WorkerPool
from server.catalog.images import Catalog, load_catalog
from server.flows.catalog.folder import FolderCatalog
from server.flows.catalog.switch import CatalogSwitch
from server.flows.catalog.update import CatalogUpdater
from server.flows.operators.checkpoints import CheckpointManager
from server.state.served import ServedCatalog
from tests.support.harness import REPOSITORY
from tests.support.weight_files import flux_folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The shipped catalog, and a folder with the starters."""
    shutil.copytree(REPOSITORY / "model_configs", tmp_path / "configs")
    (tmp_path / "weights").mkdir()
    for name in ("starter-alpha", "starter-beta", "starter-chat"):
        (tmp_path / "weights" / name).symlink_to(REPOSITORY / "weights" / name)
    return tmp_path / "configs", tmp_path / "weights"


@pytest.fixture
def manager(folders: tuple[Path, Path]) -> CheckpointManager:
    return CheckpointManager(*folders)


class Workers:
    """Image workers that load any checkpoint at once, unless `refuse` gives a reason."""

    def __init__(self) -> None:
        self.current: object = None
        self.refuse: Callable[[CheckpointSpec], str | None] = lambda _: None
        self.loads: list[str] = []

    def plan(self, _: Catalog) -> object:
        return object()

    async def prepare(self, specs: Sequence[CheckpointSpec], _: object) -> None:
        self.loads += [spec.path.name for spec in specs]
        if reasons := [why for spec in specs if (why := self.refuse(spec)) is not None]:
            raise CheckpointError("; ".join(reasons))

    def unload_except(self, *_: object, **__: object) -> None:
        """They have room for all."""


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def served(folders: tuple[Path, Path]) -> ServedCatalog:
    for name in ("one", "two"):
        flux_folder(folders[1] / name)
    return ServedCatalog(load_catalog(*folders))


@pytest.fixture
def updater(
    folders: tuple[Path, Path], manager: CheckpointManager, served: ServedCatalog, workers: Workers, tmp_path: Path
) -> CatalogUpdater:
    chats: EngineHost[ChatJob | CountJob, ChatEvent] = EngineHost("chat", (), HostLimits(1))
    digests, upstreams = Digests(tmp_path / "digests.json"), UpstreamClient((), {}, 60)
    switch = CatalogSwitch(served, cast(WorkerPool, workers), chats, upstreams, digests, preload=True)
    record = FolderCatalog(switch, tmp_path / "swaps.json", model_configs=folders[0], weights=folders[1])
    return CatalogUpdater(served, record, manager, folders[0])
