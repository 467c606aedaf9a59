"""What a host knows of its worker's checkpoints."""

from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import CheckpointState
from server.backends.worker_checkpoints import WorkerCheckpoints

SPEC = CheckpointSpec("one", Path("one"), None, "alpha", "img2img", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["loaded", "failed"])
async def test_a_worker_that_tries_a_checkpoint_which_serves_already_is_not_idle(ends: str) -> None:
    """It would be put to sleep in the middle, and told that it has the weights when it has none."""
    known = WorkerCheckpoints((SPEC,))
    known.first_loads(wakes=False)
    known.record(CheckpointState(SPEC, "loaded", "", trials_left=True))
    assert known.is_loaded(SPEC)
    assert not known.loading
    assert not known.are_settled
    known.record(CheckpointState(SPEC, "loaded" if ends == "loaded" else "failed", ""))
    assert known.are_settled


def test_one_that_is_dropped_while_it_is_tried_keeps_no_worker_awake() -> None:
    known = WorkerCheckpoints((SPEC,))
    known.first_loads(wakes=False)
    known.record(CheckpointState(SPEC, "loaded", "", trials_left=True))
    known.retain((), ())
    assert known.are_settled
