"""A node that joins or leaves while a swap is prepared: the swap goes on as it began, and then the node counts.

A real member of a cluster's catalog with its database and weights; the workers are scripted.
"""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.checkpoints.folder.sums import Digests
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.images import CheckpointSpec
from server.accounts.catalogs import CatalogContent, CatalogStore
from server.accounts.db import Database
from server.backends.demands import Member
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.upstream import UpstreamClient
from server.backends.worker_pool import WorkerPool
from server.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.catalog.files import parse, read_files, weight_checksums, with_sums
from server.flows.catalog.member import CatalogMember, Proposal
from server.flows.catalog.switch import CatalogSwitch
from server.state.served import ServedCatalog
from tests.support.polling import eventually
from tests.support.scripted_worker import ScriptedWorker
from tests.support.tiny_server import write_tiny_files
from tests.unit.accounts.helpers import server

CHANGE = "change_1"


@dataclass
class Gateway:
    """Two workers on nodes of a cluster, and a version of the catalog in which their checkpoint is another."""

    served: ServedCatalog
    worker_pool: WorkerPool
    workers: dict[str, ScriptedWorker]
    catalog_member: CatalogMember
    store: CatalogStore
    proposal: Proposal
    before: CheckpointSpec
    after: CheckpointSpec

    async def roster(self, *names: str) -> bool:
        """The server sees that the cluster has these engines. Returns whether it uses others now."""
        if {host.name for host in self.worker_pool.workers} == set(names):
            return False
        async with self.served.lock:
            return await self.worker_pool.change_members([self.member(name) for name in names], self.served.current)

    def member(self, name: str) -> Member:
        worker = self.workers.setdefault(name, ScriptedWorker())
        return Member(EngineHost("image", (), HostLimits(64), launcher=worker, name=name), room_bytes=2**30)

    async def prepare(self) -> None:
        assert self.store.acquire_change_lock(CHANGE)
        await self.catalog_member.prepare(self.proposal)
        assert {self.after} <= set(self.workers["a"].loaded) & set(self.workers["b"].loaded)

    def placed(self) -> dict[str, tuple[CheckpointSpec, ...]]:
        return dict(self.worker_pool.current.placement)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    weights, configs = write_tiny_files(tmp_path, chat=False)
    shutil.copytree(weights / "tiny", weights / "other")
    files = read_files(configs)
    contents = []
    digests = Digests(tmp_path / "digests.json")
    for name in ("tiny", "other"):
        texts = {**files, "tiny.toml": files["tiny.toml"].replace('"tiny"', f'"{name}"')}
        contents.append(CatalogContent(texts, weight_checksums(parse(texts, configs, weights), weights, digests)))
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    server(database, "me")
    store = CatalogStore(database, "me")
    store.begin(contents[0])
    served = ServedCatalog(with_sums(load_catalog(configs, weights), digests))
    worker_pool, upstreams = WorkerPool([]), UpstreamClient((), {}, 60)
    chat_engine: EngineHost[ChatJob | CountJob, ChatEvent] = EngineHost("chat", (), HostLimits(1))
    switch = CatalogSwitch(served, worker_pool, chat_engine, upstreams, digests, preload=True)
    member = CatalogMember(switch, store, digests, version=1, model_configs=configs, weights=weights)
    specs = [with_sums(parse(each.files, configs, weights), digests).checkpoints[0] for each in contents]
    proposal = Proposal(change=CHANGE, version=2, files=contents[1].files, weights=contents[1].weights)
    made = Gateway(served, worker_pool, {}, member, store, proposal, specs[0], specs[1])
    await worker_pool.start()
    await made.roster("a", "b")
    await eventually(lambda: all(worker.loaded == [made.before] for worker in made.workers.values()))
    yield made
    await worker_pool.stop()
    await upstreams.close()
    database.dispose()


async def test_a_node_that_joins_before_the_swap_is_made_serves_the_new_checkpoint(gateway: Gateway) -> None:
    await gateway.prepare()
    await gateway.roster("a", "b", "c")
    assert gateway.after in gateway.workers["a"].loaded  # nothing that is prepared may be evicted
    gateway.store.commit(2, gateway.proposal.content, CHANGE)
    assert await gateway.catalog_member.settle() is not None
    await gateway.roster("a", "b", "c")
    assert gateway.placed() == dict.fromkeys("abc", (gateway.after,))
    await eventually(lambda: all(worker.loaded == [gateway.after] for worker in gateway.workers.values()))


async def test_a_node_that_leaves_before_the_swap_is_made_has_no_part_in_it(gateway: Gateway) -> None:
    await gateway.prepare()
    await gateway.roster("a")
    gateway.store.commit(2, gateway.proposal.content, CHANGE)
    assert await gateway.catalog_member.settle() is not None
    await gateway.roster("a")
    assert gateway.placed() == {"a": (gateway.after,)}
    assert [host.name for host in gateway.worker_pool.workers] == ["a"]
    assert gateway.workers["a"].loaded == [gateway.after]


async def test_a_node_that_joins_while_a_swap_is_given_up_serves_the_old_checkpoint(gateway: Gateway) -> None:
    await gateway.prepare()
    assert not await gateway.roster("a", "b", "c")
    gateway.store.release_change_lock()
    assert await gateway.catalog_member.settle() is None
    assert await gateway.roster("a", "b", "c")
    assert gateway.placed() == dict.fromkeys("abc", (gateway.before,))
    await eventually(lambda: all(worker.loaded == [gateway.before] for worker in gateway.workers.values()))


async def test_what_was_loaded_before_its_sums_were_read_is_prepared_as_it_is(gateway: Gateway) -> None:
    assert gateway.store.acquire_change_lock(CHANGE)
    await gateway.catalog_member.load(CHANGE, gateway.proposal.content.files)
    await gateway.catalog_member.prepare(gateway.proposal)
    assert gateway.workers["a"].loaded == [gateway.before, gateway.after]
    gateway.store.commit(2, gateway.proposal.content, CHANGE)
    diff = await gateway.catalog_member.settle()
    assert diff is not None
    assert "sha256" in diff.loaded["other"]


async def test_what_does_not_load_is_refused_before_any_server_reads_its_sum(gateway: Gateway) -> None:
    assert gateway.store.acquire_change_lock(CHANGE)
    gateway.workers["b"].failing.add("other")
    with pytest.raises(BadRequest, match="other does not load"):
        await gateway.catalog_member.load(CHANGE, gateway.proposal.content.files)
    gateway.store.release_change_lock()
    assert await gateway.catalog_member.settle() is None
    await eventually(lambda: gateway.workers["a"].loaded == [gateway.before])
