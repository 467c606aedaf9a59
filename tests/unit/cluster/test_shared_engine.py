"""One worker that two servers use: whose jobs are whose, what is dropped with a server, and what is kept for it.

The worker is scripted: the wire ends in the test.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec, Encoding, Failed, ImageJob, Progress, Queued, RawImage
from pipelines.protocol.messages import (
    Cancel,
    CheckpointState,
    FromWorker,
    JobEvent,
    Load,
    Ready,
    Sharing,
    Submit,
    UnloadExcept,
)
from pipelines.protocol.raw_image_file import RawImageFile
from server.backends.cluster import shared_engine
from server.backends.cluster.engine_actor import OPTIONS
from server.backends.cluster.shared_engine import SharedEngine
from server.backends.cluster.transport import pack
from tests.support.polling import eventually
from tests.support.scripted_worker import ScriptedWorker

SPEC = CheckpointSpec("one", Path("one"), None, "alpha", "img2img", 1, max_area_px=9_000_000)
OTHER = replace(SPEC, name="two", path=Path("two"))
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="a boat", sampling=SPEC.sampling.resolve(steps=2), width_px=64, height_px=64,
    n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=9,
)  # fmt: skip
MOST = 3  # jobs of both servers together
DONE = Failed("timed_out", "")


def submit(name: str) -> Submit:
    return Submit(replace(JOB, id=name))


@dataclass
class Server:
    """The end of a link that a gateway has."""

    name: str
    engine: SharedEngine
    heard: list[FromWorker] = field(default_factory=list)
    ended: str | None = None

    async def listen(self) -> None:
        async for heard in self.engine.link(self.name):
            if isinstance(heard, str):
                self.ended = heard
            else:
                self.heard += heard

    def events(self, name: str) -> list[object]:
        return [each.event for each in self.heard if isinstance(each, JobEvent) and each.job_id == name]

    def states(self) -> list[tuple[str, str]]:
        return [(each.spec.name, each.state) for each in self.heard if isinstance(each, CheckpointState)]

    def others_jobs(self) -> int:
        return [each.others_jobs for each in self.heard if isinstance(each, Sharing)][-1]


@dataclass
class Shared:
    worker: ScriptedWorker
    engine: SharedEngine
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def link(self, name: str) -> Server:
        server = Server(name, self.engine)
        self.tasks.append(asyncio.create_task(server.listen()))
        await eventually(lambda: any(isinstance(message, Ready) for message in server.heard))
        return server


@pytest.fixture
async def shared() -> AsyncIterator[Shared]:
    worker = ScriptedWorker()
    running = Shared(worker, SharedEngine(worker, "cpu", MOST))
    yield running
    await running.engine.stop()
    await asyncio.gather(*running.tasks)


def said(engine: SharedEngine, server: Server, *messages: Submit | Cancel | Load | UnloadExcept) -> None:
    assert engine.send(server.name, messages)


async def test_each_server_hears_of_its_own_jobs_and_how_many_others_have(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("of-a"))
    said(shared.engine, b, submit("of-b"))
    shared.worker.event("of-a", Queued(), DONE)
    await eventually(lambda: a.events("of-a") == [Queued(), DONE] and b.others_jobs() == 0)
    assert (a.events("of-b"), b.events("of-a"), a.others_jobs(), shared.engine.jobs) == ([], [], 1, 1)


async def test_all_servers_together_have_one_queue(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("1"), submit("2"))
    said(shared.engine, b, submit("3"), submit("4"))
    await eventually(lambda: len(b.events("4")) == 1)
    (refused,) = b.events("4")
    assert isinstance(refused, Failed)
    assert (refused.code, refused.retry_after_s) == ("queue_full", 5.0)
    assert shared.worker.jobs == ["1", "2", "3"]


async def test_a_server_cancels_its_own_jobs_alone(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("job"))
    shared.worker.event("job", Queued())
    await eventually(lambda: a.events("job") == [Queued()])
    said(shared.engine, b, Cancel("job"))
    assert shared.worker.cancelled == []
    said(shared.engine, a, Cancel("job"))
    assert shared.worker.cancelled == ["job"]


async def test_the_jobs_of_a_server_that_leaves_are_dropped_once_the_worker_knows_them(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("known"), submit("unknown"))
    said(shared.engine, b, submit("of-b"))
    shared.worker.event("known", Queued())
    await eventually(lambda: len(a.events("known")) == 1)
    shared.engine.unlink("a")
    await eventually(lambda: a.ended is not None)
    assert shared.worker.cancelled == ["known"]
    shared.worker.event("unknown", Queued())
    await eventually(lambda: shared.worker.cancelled == ["known", "unknown"])
    shared.worker.event("known", DONE)
    shared.worker.event("unknown", DONE)
    await eventually(lambda: shared.engine.jobs == 1 and b.others_jobs() == 0)
    assert not shared.engine.send("a", ())


async def test_a_silent_server_is_given_up_and_one_that_says_nothing_much_is_not(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_engine, "LINK_SILENCE_S", 2.0)
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("job"))
    shared.worker.event("job", Queued())

    def talk() -> bool:
        shared.engine.send("b", ())
        return a.ended is not None

    await eventually(talk)
    assert (shared.worker.cancelled, b.ended, shared.engine.links) == (["job"], None, 1)


async def test_a_checkpoint_is_loaded_once_and_stays_while_any_server_names_it(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, Load((SPEC,)), UnloadExcept((SPEC,)))
    await eventually(lambda: a.states() == [("one", "loaded")])
    said(shared.engine, b, Load((SPEC, OTHER)))
    await eventually(lambda: b.states() == [("one", "loaded"), ("two", "loaded")])
    assert shared.worker.loaded == [SPEC, OTHER]
    said(shared.engine, a, UnloadExcept((SPEC,)))  # b has prepared the other one and may serve it at any moment
    assert shared.worker.loaded == [SPEC, OTHER]
    said(shared.engine, b, UnloadExcept((OTHER,)))
    assert shared.worker.loaded == [SPEC, OTHER]
    said(shared.engine, a, UnloadExcept((OTHER,)))
    assert shared.worker.loaded == [OTHER]


async def test_a_checkpoint_that_failed_is_tried_again_when_it_is_asked_for(shared: Shared) -> None:
    a = await shared.link("a")
    shared.worker.failing.add("one")
    said(shared.engine, a, Load((SPEC,)))
    await eventually(lambda: a.states() == [("one", "failed")])
    shared.worker.failing.clear()
    said(shared.engine, a, Load((SPEC,)))
    await eventually(lambda: a.states() == [("one", "failed"), ("one", "loaded")])


async def test_the_end_of_a_worker_ends_all_links_and_the_next_link_starts_another(shared: Shared) -> None:
    a, b = await shared.link("a"), await shared.link("b")
    said(shared.engine, a, submit("job"))
    shared.engine.kill("of an earlier life")
    shared.engine.kill("b")
    await eventually(lambda: None not in {a.ended, b.ended})
    assert (a.ended, shared.engine.jobs, shared.engine.device) == ("a test wanted it", 0, None)
    c = await shared.link("a-again")
    assert (shared.engine.starts, c.events("job"), shared.worker.jobs) == (2, [], ["job"])


async def test_an_engine_that_leaves_takes_no_more_and_ends_with_its_jobs(shared: Shared) -> None:
    a = await shared.link("a")
    said(shared.engine, a, submit("job"))
    leaving = asyncio.create_task(shared.engine.leave())
    await eventually(lambda: shared.engine.leaving)
    said(shared.engine, a, submit("late"))
    await eventually(lambda: len(a.events("late")) == 1)
    shared.worker.event("job", Progress(1, 2))
    await eventually(lambda: len(a.events("job")) == 1)
    assert not leaving.done()
    shared.worker.event("job", DONE)
    await leaving
    assert shared.worker.jobs == ["job"]


def test_references_travel_with_their_pixels(tmp_path: Path) -> None:
    path = tmp_path / "picture.ppm"
    path.write_bytes(b"P6\n2 1\n255\n" + bytes(range(6)))
    job = replace(JOB, references=(RawImageFile(2, 1, "RGB", path),))
    packed = pack([Submit(job)])
    path.unlink()
    (message,) = pickle.loads(packed)
    assert message.job.references == (RawImage(2, 1, "RGB", bytes(range(6))),)


def test_ray_makes_an_engine_again_and_repeats_none_of_its_jobs() -> None:
    assert (OPTIONS["max_restarts"], OPTIONS["max_task_retries"]) == (-1, 0)
