"""How a group of two processes fails: `python -m tests.support.group_stories STORY` is its rank 0."""

import contextlib
import os
import resource
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.parallel import group as groups
from pipelines.images.parallel import process_group
from pipelines.images.parallel.group import Group
from pipelines.protocol.images import Parallel
from tests.support.processes import status_bytes
from tests.support.tiny_families.qwen import qwen_transformer

CPU = torch.device("cpu")


def transformer() -> Any:
    torch.manual_seed(1)
    return qwen_transformer().eval()


def inputs(tokens: int = 16, channels: int = 64, text_tokens: int = 7) -> dict[str, Any]:
    """By default a text of seven tokens, which is padded."""
    generator = torch.Generator().manual_seed(2)
    return {
        "hidden_states": torch.randn(1, tokens, channels, generator=generator),
        "encoder_hidden_states": torch.randn(1, text_tokens, 16, generator=generator),
        "encoder_hidden_states_mask": None,
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 4, tokens // 4)]],
    }


def fail_alike_then_go_on() -> None:
    """An error of all ranks is the pass's own."""
    denoiser = transformer()
    with torch.no_grad():
        expected = denoiser(**inputs()).sample
        Group(CPU, 2).share(denoiser, "context")
        with contextlib.suppress(RuntimeError):
            denoiser(**inputs(channels=48))
            raise AssertionError("it was computed")
        assert torch.allclose(denoiser(**inputs()).sample, expected, atol=1e-5)
    os._exit(0)


def refuse_what_does_not_fit_on_the_other_process() -> None:
    """The group goes on without it."""
    group, denoiser, pid = started()
    with torch.no_grad():
        expected = denoiser(**inputs()).sample
    large = torch.nn.Sequential(torch.nn.Linear(4096, 4096))
    large._tp_plan = {"0": "colwise"}  # type: ignore[assignment]
    limit = status_bytes(pid, "VmSize") + 2**24
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    ways: tuple[Parallel, ...] = ("context", "tensor")
    for way in ways:
        with contextlib.suppress(CheckpointError):
            group.share(large, way)
            raise AssertionError("it was taken")
    with torch.no_grad():
        assert torch.equal(denoiser(**inputs()).sample, expected)
    os._exit(0)


def started(limit_s: float = 60.0) -> tuple[Group, Any, int]:
    """A group that has computed a pass, its denoiser, and the rank's process id. An exchange waits so long."""
    process_group.LIMIT = timedelta(seconds=limit_s)  # type: ignore[misc]
    denoiser, group = transformer(), Group(CPU, 2)
    group.share(denoiser, "context")
    with torch.no_grad():
        denoiser(**inputs())
    (pid,) = [rank.pid for rank in group._ranks]
    assert pid is not None
    return group, denoiser, pid


def fail_at_another_place() -> None:
    """Both fail in the same pass, but this rank after an exchange to which the other one does not come."""
    group, _, _ = started()

    def broken(**_: object) -> None:
        dist.all_reduce(torch.zeros(1), async_op=True)
        raise RuntimeError("later than the other rank")

    group.forward(0, broken, inputs(channels=48, text_tokens=8))


def wait_for_a_stopped_process() -> None:
    """As for one that hangs in a driver."""
    groups.AGREE_S = 0.5  # type: ignore[misc]
    _, denoiser, pid = started(limit_s=15.0)
    os.kill(pid, signal.SIGSTOP)
    with torch.no_grad():
        denoiser(**inputs())


def die_beside_a_stopped_process() -> None:
    _, _, pid = started()
    os.kill(pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory_alone() -> None:
    """As where the first GPU holds the text encoders and the VAE too."""
    groups.AGREE_S = 0.5  # type: ignore[misc]
    group, _, _ = started()

    def broken(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    group.forward(0, broken, inputs(text_tokens=8))


def let_the_other_process_run_out_of_memory() -> None:
    """While it receives, or in its part of the pass."""
    groups.AGREE_S = 0.5  # type: ignore[misc]
    _, denoiser, pid = started()
    limit = status_bytes(pid, "VmSize") + 2**22
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    with torch.no_grad():
        denoiser(**inputs(tokens=2**14))


STORIES = {
    story.__name__: story
    for story in (
        fail_alike_then_go_on,
        refuse_what_does_not_fit_on_the_other_process,
        fail_at_another_place,
        wait_for_a_stopped_process,
        die_beside_a_stopped_process,
        run_out_of_memory_alone,
        let_the_other_process_run_out_of_memory,
    )
}

if __name__ == "__main__":
    STORIES[sys.argv[1]]()
