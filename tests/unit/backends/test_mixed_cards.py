"""Image workers of which not every one can draw every checkpoint: a call goes to one that can, whatever the others do.

The workers are scripted, and a failed load answers at once: nothing attracts calls as that does. Files are real.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.runtime import least_bytes
from pipelines.protocol.images import CheckpointSpec, Event, Failed, Finished, ImageJob, RawImage, Runtime, Started
from pipelines.protocol.messages import FromWorker, GpuMemory, NoGpu, Pong, Spec, Submit, ToWorker, WorkerMemory
from server.backends import engine_host, failed_loads, worker_life
from server.backends.demands import Member
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.failed_loads import Failure
from server.backends.job_events import JobEvents
from server.backends.worker_pool import WorkerPool
from tests.support.polling import eventually
from tests.support.scripted_worker import ScriptedWorker
from tests.support.weight_files import flux_folder
from tests.unit.backends.test_worker_pool import catalog, job, last

BYTES = 2 * 1110  # of the checkpoint, on a GPU
REFUSED = Failed("checkpoint_failed", "it can't be used", "fp8 needs another GPU\nTraceback", movable="anywhere")

NO_MEMORY = Failed("out_of_memory", "The device ran out of memory", movable="larger")


@dataclass
class Card(ScriptedWorker):
    """A worker that draws at once, or fails at once to load the checkpoints whose names are in `broken`."""

    broken: set[str] = field(default_factory=set)
    deadly: set[str] = field(default_factory=set)  # names of checkpoints whose loads end it
    ends: str = "a test wanted it"
    drawn: list[str] = field(default_factory=list)
    draws: bool = True
    hangs: bool = False  # it is spawned, and never comes up
    too_large_px: float = math.inf  # there is no memory for images of this area

    def send(self, messages: list[ToWorker]) -> None:  # type: ignore[override]
        super().send(messages)
        for message in messages:
            if isinstance(message, Submit) and isinstance(drawn := message.job, ImageJob):
                if drawn.checkpoint.name in self.broken:
                    self.event(drawn.id, REFUSED)
                elif drawn.width_px * drawn.height_px >= self.too_large_px:
                    self.event(drawn.id, Started(), NO_MEMORY)
                elif self.draws:
                    self.drawn.append(drawn.id)
                    self.event(drawn.id, Started(), Finished((), run_s=1.0, unit_s=0.5))

    async def receive(self) -> Sequence[FromWorker]:
        return await super().receive() if not self.hangs else await asyncio.Future()

    async def _load(self, specs: Sequence[Spec]) -> None:
        for spec in specs:
            if spec.name in self.deadly:
                self.kill()
                return
            await super()._load([spec])

    def tell(self, message: NoGpu | Pong) -> None:
        self._inbox.put_nowait(message)

    async def end_reason(self) -> str:
        return self.ends


@dataclass
class Box:
    pool: WorkerPool
    cards: list[Card]

    async def draw(self, *names: str, spec: CheckpointSpec) -> list[Event]:
        running = [self.pool.submit(job(name, spec=spec)) for name in names]
        return [await asyncio.wait_for(last(events), 60) for events in running]  # type: ignore[misc]

    def put(self, name: str, spec: CheckpointSpec) -> JobEvents[Event]:
        return self.pool.submit(job(name, spec=spec))


Build = Callable[..., "asyncio.Future[Box]"]


@pytest.fixture
async def box() -> AsyncIterator[Build]:
    """A started pool of cards with so many bytes for weights; with `free`, as many of them are free at the start."""
    pools: list[WorkerPool] = []

    async def build(
        rooms: list[int], *specs: CheckpointSpec, free: list[int] | None = None, wait: bool = True, **cards: set[str]
    ) -> Box:
        made = [Card(budget_bytes=room, broken=cards.get(f"card{index}", set())) for index, room in enumerate(rooms)]
        members = [
            Member(
                EngineHost("image", (), HostLimits(64), "cuda", card, f"card{index}"),
                room_bytes=room if free is None else free[index], item_bytes=2, most_bytes=room,
            )
            for index, (card, room) in enumerate(zip(made, rooms, strict=True))
        ]  # fmt: skip
        pools.append(pool := WorkerPool(members))
        pool.unload_except(pool.plan(catalog(**{spec.name: spec for spec in specs})), preload=False)
        await pool.start()
        if wait:
            await asyncio.wait_for(pool.wait_ready(), 60)
        return Box(pool, made)

    yield build
    for pool in pools:
        await pool.stop()


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    return CheckpointSpec("flux", flux_folder(tmp_path_factory.mktemp("weights") / "flux"), None, "alpha", "img2img", 1)


def numbered(count: int) -> list[str]:
    return [f"call{number}" for number in range(count)]


async def test_forty_calls_at_once_are_drawn_by_the_card_that_can_hold_the_checkpoint(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES, BYTES - 1], flux)
    assert all(isinstance(end, Finished) for end in await cards.draw(*numbered(40), spec=flux))
    assert [len(card.jobs) for card in cards.cards] == [40, 0]
    assert cards.pool.current.placement["card1"] == ()
    assert "at least 0.00 GiB" in cards.pool.current.too_small["card1"][flux]
    assert cards.pool.able(flux) == {"card0"}


async def test_a_card_that_others_fill_at_the_start_is_not_too_small(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES, 2 * BYTES], flux, free=[10 * BYTES, 0])
    await cards.draw(*numbered(2), spec=flux)
    assert [len(card.jobs) for card in cards.cards] == [1, 1]


async def test_a_checkpoint_too_big_for_every_card_fails_with_what_loading_says(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([BYTES // 2, BYTES // 4], flux, card0={"flux"}, card1={"flux"})
    assert await cards.draw("a", spec=flux) == [REFUSED]
    assert [len(card.jobs) for card in cards.cards] == [1, 1], "each has tried it"
    assert cards.pool.current.too_small == {}


async def test_a_failed_load_moves_the_call_and_is_remembered(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 3, flux, card0={"flux"}, card1={"flux"})
    ends = await cards.draw(*numbered(40), spec=flux)
    assert all(isinstance(end, Finished) for end in ends)
    assert len(cards.cards[2].drawn) == 40
    before = [len(card.jobs) for card in cards.cards]
    assert all(isinstance(end, Finished) for end in await cards.draw(*numbered(40), spec=flux))
    assert [len(card.jobs) for card in cards.cards] == [*before[:2], before[2] + 40]
    host = cards.pool.workers[0]
    assert (host.checkpoints[flux].state, host.checkpoints[flux].detail) == ("failed", "fp8 needs another GPU")
    assert before[0] > 1
    assert (host.failures.find(flux) or Failure(0, 0)).count == 1, "the calls that waited for it failed together"


async def test_a_checkpoint_that_no_card_loads_is_refused_until_its_files_change(
    box: Build, flux: CheckpointSpec, tmp_path: Path
) -> None:
    flux = replace(flux, path=flux_folder(tmp_path / "flux"))
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"}, card1={"flux"})
    assert await cards.draw("a", spec=flux) == [REFUSED]
    ends = await cards.draw(*numbered(9), spec=flux)
    assert all(isinstance(end, Failed) and "loading it has failed" in end.message for end in ends)
    assert [len(card.jobs) for card in cards.cards] == [1, 1], "each has tried it once"
    weights = flux.path / "transformer/diffusion_pytorch_model.safetensors"
    save_file({"weight": np.ones(8, np.float16)}, weights)  # of another size, and broken too
    assert await cards.draw("b", spec=flux) == [REFUSED]
    assert await cards.draw(*numbered(2), spec=flux) != [REFUSED] * 2  # by now the files are known
    assert [len(card.jobs) for card in cards.cards] == [2, 2]
    weights.touch()  # the file is mended
    for card in cards.cards:
        card.broken.clear()
    assert all(isinstance(end, Finished) for end in await cards.draw(*numbered(4), spec=flux))
    await eventually(lambda: all(host.checkpoints[flux].state == "loaded" for host in cards.pool.workers[:1]))
    assert len(cards.pool.able(flux)) == 2, "what was mended for one may be for all"


async def test_a_checkpoint_that_no_card_loads_is_tried_again_after_a_pause_and_by_a_reload(
    box: Build, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"}, card1={"flux"})
    assert await cards.draw("a", spec=flux) == [REFUSED]
    with monkeypatch.context() as patch:
        patch.setattr(failed_loads, "FIRST_PAUSE_S", 0.0)
        assert await cards.draw("b", spec=flux) == [REFUSED]
    assert [len(card.jobs) for card in cards.cards] == [2, 2]
    assert await cards.draw("c", spec=flux) != [REFUSED]
    cards.pool.unload_except(cards.pool.current, preload=False)
    assert await cards.draw("d", spec=flux) == [REFUSED]
    assert [len(card.jobs) for card in cards.cards] == [3, 3]


async def test_a_card_that_may_try_a_checkpoint_again_gets_its_call_where_another_may_not(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"})
    for card in cards.cards:
        card.draws = False
    first, second = cards.put("a", flux), cards.put("b", flux)
    reading = [asyncio.create_task(last(events)) for events in (first, second)]
    await eventually(lambda: sorted(cards.cards[1].jobs) == ["a", "b"])
    cards.cards[1].kill()  # while it loads
    for failed in await asyncio.gather(*reading):
        assert isinstance(failed, Failed)
        assert failed.code == "worker_died"
    await eventually(lambda: len(cards.pool.alive) == 2)
    cards.cards[1].draws = True
    assert all(isinstance(end, Finished) for end in await cards.draw("c", spec=flux))


async def test_the_failure_of_one_checkpoint_keeps_no_other_from_a_card(box: Build, flux: CheckpointSpec) -> None:
    other = replace(flux, name="other", sampling=replace(flux.sampling, guidance=1.0), runtime=Runtime(resident=True))
    cards = await box([10 * BYTES] * 2, flux, other, card0={"flux"})
    await cards.draw("a", "b", spec=flux)
    await cards.draw("c", "d", spec=other)
    assert {"c", "d"} & set(cards.cards[0].drawn)


async def test_a_card_whose_memory_others_leave_is_tried_again(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"}, card1=set())
    await cards.draw("a", "b", spec=flux)
    assert cards.pool.able(flux) == {"card1"}
    full, free = (Pong(WorkerMemory(0, GpuMemory(1000, unused, 0, 0, 0))) for unused in (100, 900))
    cards.cards[0].tell(full)
    await eventually(lambda: cards.pool.workers[0].status.memory is not None)
    assert cards.pool.able(flux) == {"card1"}
    cards.cards[0].tell(free)
    await eventually(lambda: cards.pool.able(flux) == {"card0", "card1"})


async def test_memory_that_a_worker_gives_back_itself_is_no_reason_to_try_a_load_again(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"})
    await cards.draw("a", "b", spec=flux)
    host = cards.pool.workers[0]
    for free, reserved in ((300, 700), (500, 500)):  # its allocator keeps 200 of an image, and then does not
        cards.cards[0].tell(Pong(WorkerMemory(free, GpuMemory(1000, free, 500, 600, reserved))))
        await eventually(lambda free=free: host.status.memory is not None and host.status.memory.host_bytes == free)  # type: ignore[misc]
        assert cards.pool.able(flux) == {"card1"}


def test_a_checkpoint_that_has_failed_for_weeks_is_still_counted() -> None:
    assert Failure(2000, time.monotonic()).counts
    assert not Failure(2000, time.monotonic() - failed_loads.LONGEST_PAUSE_S).counts


async def test_a_failure_is_forgotten_after_a_while_and_by_a_reload(
    box: Build, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = await box([10 * BYTES] * 2, flux, card0={"flux"})
    await cards.draw("a", "b", spec=flux)
    assert cards.pool.able(flux) == {"card1"}
    with monkeypatch.context() as patch:
        patch.setattr(failed_loads, "FIRST_PAUSE_S", 0.0)
        assert cards.pool.able(flux) == {"card0", "card1"}
    cards.pool.unload_except(cards.pool.current, preload=False)
    assert cards.pool.able(flux) == {"card0", "card1"}


async def test_nodes_that_come_and_go_let_no_failed_load_be_tried_again(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux)
    cards.cards[0].failing.add("flux")
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: cards.pool.able(flux) == {"card1"})
    host, members = cards.pool.workers[0], cards.pool._members
    for name in numbered(3):
        node = Member(
            EngineHost("image", (), HostLimits(64), "cuda", Card(), name), room_bytes=10 * BYTES, item_bytes=2
        )
        for present in ((*members, node), members):
            assert await cards.pool.change_members(present, catalog(flux=flux))
            assert host.loading == []
            assert "card0" not in cards.pool.able(flux)


async def test_a_call_that_no_other_card_has_a_place_for_is_told_to_come_later(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES] * 3, flux)
    for card in cards.cards:
        card.draws = False
    running = [cards.put(name, flux) for name in numbered(3 * 64 - 1)]
    (roomy,) = (host for host in cards.pool.workers if host.jobs == 63)
    full = next(card for card in cards.cards if len(card.jobs) == 64)
    of_full = {name: events for name, events in zip(numbered(3 * 64 - 1), running, strict=True) if name in full.jobs}
    (first, *others) = of_full.values()
    reading = asyncio.create_task(last(first))
    full.event(full.jobs[0], REFUSED)
    await eventually(lambda: roomy.jobs == 64)
    full.event(full.jobs[1], REFUSED)
    failed = await asyncio.wait_for(last(others[0]), 60)
    assert isinstance(failed, Failed)
    assert (failed.code, (failed.retry_after_s or 0) > 0) == ("queue_full", True)
    reading.cancel()


async def test_a_preload_that_failed_is_tried_again_by_a_reload(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux)
    cards.cards[0].failing.add("flux")
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: cards.pool.able(flux) == {"card1"})
    cards.cards[0].failing.clear()
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: cards.cards[0].loaded == [flux])


async def test_calls_on_a_lost_card_fail_and_the_next_ones_wait_until_it_has_loaded_again(
    box: Build, flux: CheckpointSpec
) -> None:
    """A card may be lost by a job that it could not say to have started: moved, it would be the end of the next one."""
    cards = await box([10 * BYTES] * 2, flux)
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: all(card.loaded for card in cards.cards))
    for card in cards.cards:
        card.draws = False
    running = {name: cards.put(name, flux) for name in "ab"}
    lost, other = cards.cards
    lost.loads.clear()
    lost.kill()
    failed = await asyncio.wait_for(last(running[lost.jobs[0]]), 60)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"
    await eventually(lambda: cards.pool.workers[0].restarts == 1 and len(cards.pool.alive) == 2)
    for card in cards.cards:
        card.draws = True
    await cards.draw(*numbered(4), spec=flux)
    assert [len(lost.drawn), len(other.drawn)] == [0, 4]
    lost.loads.set()
    await eventually(lambda: cards.pool.workers[0].ready)
    assert cards.pool.able(flux) == {"card0", "card1"}


async def test_a_load_that_ends_its_worker_ends_no_second_one(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux)
    for card in cards.cards:
        card.draws = False
    running = cards.put("a", flux)
    loading = next(card for card in cards.cards if card.jobs)
    loading.kill()
    failed = await asyncio.wait_for(last(running), 60)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"
    (other,) = (card for card in cards.cards if card is not loading)
    assert other.jobs == []
    other.draws = True
    assert all(isinstance(end, Finished) for end in await cards.draw("b", "c", spec=flux))
    assert other.drawn == ["b", "c"], "the one that died with it is not tried first"


async def test_a_checkpoint_whose_loads_end_workers_is_no_way_to_end_them_all_the_time(
    box: Build, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_life, "MAX_PAUSE_S", 0.0)
    other = replace(flux, name="other", runtime=Runtime(resident=True))
    cards = await box([10 * BYTES] * 2, flux, other)
    for card in cards.cards:
        card.draws = False
    codes = list[str]()
    for name in numbered(9):
        running = cards.put(name, flux)
        for card in cards.cards:
            if card.jobs[-1:] == [name]:
                card.kill()
        failed = await asyncio.wait_for(last(running), 60)
        assert isinstance(failed, Failed)
        codes.append(failed.code)
        await eventually(lambda: len(cards.pool.alive) == 2)
    assert codes == ["worker_died"] * 4 + ["checkpoint_failed"] * 5
    assert [card.lives for card in cards.cards] == [3, 3]
    for card in cards.cards:
        card.draws = True
    assert all(isinstance(end, Finished) for end in await cards.draw("a", "b", spec=other))
    monkeypatch.setattr(failed_loads, "FIRST_PAUSE_S", 0.0)  # a while later the file is mended
    assert all(isinstance(end, Finished) for end in await cards.draw("c", "d", spec=flux))


async def test_a_preloaded_checkpoint_that_ends_workers_leaves_the_others_their_worker(
    box: Build, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_life, "MAX_PAUSE_S", 0.0)
    other = replace(flux, name="other", runtime=Runtime(resident=True))
    cards = await box([10 * BYTES], flux, other)
    (card,), (host,) = cards.cards, cards.pool.workers
    card.deadly.add("flux")
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: card.loaded == [other] and host.ready)
    assert card.lives == 3
    assert host.checkpoints[flux].state == "failed"
    card.deadly.clear()
    cards.pool.unload_except(cards.pool.current)
    await eventually(lambda: set(card.loaded) == {flux, other})


async def test_a_card_lost_at_the_start_passes_its_calls_on(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux, wait=False)
    for card in cards.cards:
        card.starts.clear()
    running = [cards.put(name, flux) for name in "ab"]
    for card in cards.cards:
        card.starts.set()
    lost, other = cards.cards
    lost.draws = False
    await eventually(lambda: lost.jobs != [])
    lost.starts.clear()
    state = cards.pool.workers[1]._state
    assert isinstance(state, worker_life.Up)
    state.worker.problems = ("/dev/shm has 64 MiB.",)  # of its machine: it draws all the same
    lost.tell(NoGpu("no GPU can be used: it has fallen off the bus"))
    lost.kill()
    ends = [await asyncio.wait_for(last(events), 60) for events in running]
    assert all(isinstance(end, Finished) for end in ends)
    assert sorted(other.drawn) == ["a", "b"]
    assert cards.pool.workers[0].status.problem == "no GPU can be used: it has fallen off the bus"


async def test_a_card_whose_driver_hangs_at_the_start_keeps_no_other_from_serving(
    box: Build, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = await box([10 * BYTES] * 2, flux, wait=False)
    hung, other = cards.cards
    hung.hangs = True
    await eventually(lambda: cards.pool.workers[1].ready)
    assert not cards.pool.ready
    assert cards.pool.workers[0].status.problem is None
    monkeypatch.setattr(engine_host, "LATE_S", 0.0)
    await asyncio.wait_for(cards.pool.wait_ready(), 60)
    assert "its process has not come up within five minutes" in str(cards.pool.workers[0].status.problem)
    assert all(isinstance(end, Finished) for end in await cards.draw("a", "b", spec=flux))
    assert other.drawn == ["a", "b"]


async def test_the_reason_of_a_workers_end_is_its_own_and_not_that_of_the_one_before(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES], flux)
    (card,), (host,) = cards.cards, cards.pool.workers
    for told, reason in ((NoGpu("no driver"), "no driver"), (None, "SIGSEGV")):
        card.starts.clear()
        if told is not None:
            card.tell(told)
        card.ends = reason
        card.kill()
        await eventually(lambda reason=reason: host.status.problem == reason)  # type: ignore[misc]
        card.starts.set()
        await eventually(lambda: host.status.device is not None)


async def test_when_every_card_is_gone_a_call_fails_once(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux)
    for card in cards.cards:
        card.draws = False
    running = cards.put("a", flux)
    for card in cards.cards:
        card.starts.clear()
        card.tell(NoGpu("no driver"))
        card.kill()
    failed = await asyncio.wait_for(last(running), 60)
    assert isinstance(failed, Failed)
    assert "no device to compute on; nothing was charged" in failed.message


async def test_an_image_that_a_small_card_has_no_memory_for_moves_to_a_larger_one(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([3 * BYTES, 3 * BYTES, 9 * BYTES], flux)
    for card in cards.cards[:2]:
        card.too_large_px = 2_000_000
    large = job("large", spec=flux)
    large = replace(large, width_px=2000)
    ends = [cards.pool.submit(replace(large, id=name)) for name in numbered(9)]
    results = [await asyncio.wait_for(last(each), 60) for each in ends]
    assert all(isinstance(end, Finished) for end in results)
    assert len(cards.cards[2].drawn) == 9
    before = [len(card.jobs) for card in cards.cards]
    await asyncio.wait_for(last(cards.pool.submit(replace(large, id="next", width_px=3000))), 60)
    assert [len(card.jobs) for card in cards.cards] == [*before[:2], before[2] + 1], "it is remembered for larger ones"
    await cards.draw(*numbered(3), spec=flux)
    assert cards.cards[0].drawn, "smaller ones are drawn everywhere"
    assert cards.pool.able(flux) == {"card0", "card1", "card2"}
    cards.cards[2].too_large_px = 2_000_000
    end = await asyncio.wait_for(last(cards.pool.submit(replace(large, id="too large"))), 60)
    assert isinstance(end, Failed)
    assert end.code == "out_of_memory"


async def test_a_small_image_of_many_references_that_fails_keeps_no_other_image_from_a_card(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([9 * BYTES] * 2, flux)
    for card in cards.cards:
        card.draws = False
    small = replace(job("small", spec=flux), width_px=64, height_px=64)
    running = cards.pool.submit(replace(small, references=(RawImage(1000, 2000, "RGB", b""),) * 8))
    card = next(card for card in cards.cards if card.jobs)
    card.event("small", Started(), NO_MEMORY)
    assert isinstance(await asyncio.wait_for(last(running), 60), Failed)
    for each in cards.cards:
        each.draws = True
    await cards.draw(*numbered(8), spec=flux)
    assert all(each.drawn for each in cards.cards)


async def test_an_image_that_is_drawn_after_all_is_no_failure_any_more(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([9 * BYTES], flux)
    (card,), (host,) = cards.cards, cards.pool.workers
    card.too_large_px = 1_000_000
    await cards.draw("a", spec=flux)
    assert host.failures.at(flux, 1_000_000) is not None
    card.too_large_px = math.inf
    await cards.draw("b", spec=flux)
    assert host.failures.at(flux, 1_000_000) is None


async def test_a_call_that_moves_while_it_is_drawn_counts_its_wait_once(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([3 * BYTES, 9 * BYTES], flux)
    for card in cards.cards:
        card.draws = False
    small, large = cards.cards
    blocking = cards.put("a", flux)
    assert cards.pool.workers[0].jobs == 1
    small.event("a", Started(), NO_MEMORY)
    assert isinstance(await asyncio.wait_for(anext(blocking), 60), Started)
    waited_s = blocking.queue_s
    moved = asyncio.create_task(last(blocking))
    await eventually(lambda: large.jobs == ["a"])
    large.event("a", Started(), Finished((), run_s=1.0, unit_s=0.5))
    assert isinstance(await asyncio.wait_for(moved, 60), Finished)
    assert blocking.queue_s == waited_s


async def test_a_call_that_a_shared_engine_has_no_place_for_moves_and_is_no_failure_of_the_checkpoint(
    box: Build, flux: CheckpointSpec
) -> None:
    cards = await box([10 * BYTES] * 2, flux)
    for card in cards.cards:
        card.draws = False
    running = cards.put("a", flux)
    full = next(card for card in cards.cards if card.jobs)
    (other,) = (card for card in cards.cards if card is not full)
    other.draws = True
    full.event("a", Failed("queue_full", "the engine has a full queue", movable="anywhere"))
    assert isinstance(await asyncio.wait_for(last(running), 60), Finished)
    assert cards.pool.able(flux) == {"card0", "card1"}


async def test_a_sleeping_card_is_woken_for_what_another_can_not_draw(box: Build, flux: CheckpointSpec) -> None:
    cards = await box([10 * BYTES] * 2, flux, card1={"flux"})
    await cards.draw("a", "b", spec=flux)
    await cards.pool.workers[0].sleep("disk")
    (end,) = await cards.draw("c", spec=flux)
    assert isinstance(end, Finished)
    assert cards.cards[0].drawn[-1] == "c"


async def test_a_swap_loads_a_checkpoint_on_the_cards_that_can_hold_it(
    box: Build, flux: CheckpointSpec, tmp_path: Path
) -> None:
    save_file({"weight": np.zeros(4000, np.float16)}, tmp_path / "big.safetensors")
    folder = flux_folder(tmp_path / "big")
    save_file({"weight": np.zeros(4000, np.float16)}, folder / "transformer/diffusion_pytorch_model.safetensors")
    big = replace(flux, name="big", path=folder)
    cards = await box([10 * BYTES, BYTES], flux)
    cards.cards[1].failing.add("big")
    plan = cards.pool.plan(catalog(big=big))
    await asyncio.wait_for(cards.pool.prepare([big], plan), 60)
    cards.pool.unload_except(plan)
    assert all(isinstance(end, Finished) for end in await cards.draw(*numbered(4), spec=big))
    assert cards.cards[1].jobs == []


async def test_a_refused_swap_names_the_card(box: Build, flux: CheckpointSpec) -> None:
    new = replace(flux, name="new", runtime=Runtime(resident=True))
    cards = await box([10 * BYTES] * 2, flux)
    cards.cards[1].failing.add("new")
    with pytest.raises(CheckpointError, match=r"^new does not load \(on card1\)$"):
        await cards.pool.prepare([new], cards.pool.plan(catalog(new=new)))
    cards.cards[0].failing.add("new")
    with pytest.raises(CheckpointError, match=r"^new does not load$"):
        await cards.pool.prepare([new], cards.pool.plan(catalog(new=new)))


async def test_a_checkpoint_whose_only_card_is_down_is_refused_with_the_reason(
    box: Build, flux: CheckpointSpec
) -> None:
    small = replace(flux, name="small", runtime=Runtime(offload="model"))
    cards = await box([10 * BYTES, BYTES - 1], small)
    cards.cards[0].starts.clear()
    cards.cards[0].kill()
    await eventually(lambda: len(cards.pool.alive) == 1)
    with pytest.raises(CheckpointError, match="others draw it"):
        cards.pool.plan(catalog(flux=flux))


def test_the_least_that_a_checkpoint_takes_is_its_smallest_form(tmp_path: Path) -> None:
    spec = CheckpointSpec("flux", flux_folder(tmp_path / "flux"), None, "alpha", "img2img", 1)
    layers = {f"blocks.{number}.weight": np.zeros((10, 50), np.float16) for number in range(8)}
    save_file(layers, spec.path / "transformer/diffusion_pytorch_model.safetensors")
    plain = 2 * (30 + 70 + 10 + 4000)
    auto = replace(spec, runtime=Runtime(auto=True))
    assert (least_bytes(spec, 2), least_bytes(spec, 4)) == (plain, 2 * plain)
    assert least_bytes(auto, 2) == 2 * 500, "two of its layers in float8"
    assert least_bytes(auto, 4) == 2 * plain, "on a CPU it stands for the plain settings"
    assert least_bytes(replace(spec, runtime=Runtime(dtype="float32")), 2) == 2 * plain
    assert least_bytes(replace(spec, runtime=Runtime(offload="model")), 2) == 2 * 4000
    assert least_bytes(replace(spec, runtime=Runtime(gpus=2)), 2) == plain - 2 * 100, "its encoders on the second"
