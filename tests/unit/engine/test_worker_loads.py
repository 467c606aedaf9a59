"""What a worker does about a checkpoint whose memory other programs have, with an engine of the test's."""

import asyncio
from pathlib import Path
from typing import Any, cast

from pipelines.checkpoints.errors import CheckpointError, MemoryTaken, NotServed
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.messages import CheckpointState
from pipelines.worker import Loads

SPEC, OTHER = ChatSpec("one", Path("one")), ChatSpec("two", Path("two"))


class Engine:
    """Fails to load with these errors, one after another, and then loads."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tried: list[ChatSpec] = []

    async def prepare(self, spec: ChatSpec) -> None:
        self.tried.append(spec)
        if self.errors:
            raise self.errors.pop(0)


class Told:
    """The server's end of the connection."""

    def __init__(self) -> None:
        self.states: asyncio.Queue[CheckpointState] = asyncio.Queue()

    def send(self, state: CheckpointState) -> None:
        self.states.put_nowait(state)


def loads(engine: Engine, told: Told) -> Loads:
    return Loads(cast(Any, told), cast(Any, engine), pause_s=0)


async def test_it_is_loaded_once_the_others_have_left_and_the_server_is_told_once() -> None:
    engine, told = Engine(MemoryTaken("train.py has it"), MemoryTaken("train.py has it")), Told()
    await loads(engine, told).load([SPEC])
    first, second = await told.states.get(), await told.states.get()
    assert (first.state, first.detail) == ("failed", "train.py has it")
    assert (second.state, second.spec) == ("loaded", SPEC)
    assert engine.tried == [SPEC] * 3
    assert told.states.empty()


async def test_a_broken_one_is_not_tried_again() -> None:
    engine, told = Engine(CheckpointError("broken")), Told()
    await loads(engine, told).load([SPEC, OTHER])
    assert [(await told.states.get()).state for _ in range(2)] == ["failed", "loaded"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert engine.tried == [SPEC, OTHER]


async def test_nothing_is_told_of_one_that_was_dropped_while_it_was_tried() -> None:
    engine, told = Engine(NotServed()), Told()
    await loads(engine, told).load([SPEC, OTHER])
    assert (await told.states.get()).spec == OTHER
    assert told.states.empty()


async def test_one_that_the_catalog_no_longer_names_is_given_up() -> None:
    engine, told = Engine(*[MemoryTaken("full")] * 2), Told()
    worker = loads(engine, told)
    await worker.load([SPEC, OTHER])
    worker.give_up_except([OTHER])
    states = [await told.states.get() for _ in range(3)]
    assert [(state.spec, state.state) for state in states] == [
        (SPEC, "failed"), (OTHER, "failed"), (OTHER, "loaded"),
    ]  # fmt: skip
    assert engine.tried == [SPEC, OTHER, OTHER]
