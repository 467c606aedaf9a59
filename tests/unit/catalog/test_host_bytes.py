"""The host's memory that offloaded weights take, as torch page-locks them."""

from collections.abc import Iterator

import pytest

from pipelines.checkpoints.memory import host_bytes as module
from pipelines.checkpoints.memory.host_bytes import (
    CACHED_MIB,
    LIMITS,
    host_allocator_limits,
    host_bytes,
    page_locked_bytes,
    rounded_below_bytes,
)
from pipelines.protocol.images import Runtime

MIB = 2**20
PARTS = {"transformer": [18 * MIB, 72 * MIB], "text_encoder": [100 * MIB, 5 * MIB], "vae": [3 * MIB]}


@pytest.fixture
def torch_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    host_allocator_limits.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    host_allocator_limits.cache_clear()


@pytest.mark.parametrize(
    ("installed", "limits"), [("2.9.1+cu128", ""), ("2.12.0", ""), ("2.13.0+cpu", LIMITS), ("3.0.0", LIMITS)]
)
def test_only_a_torch_that_knows_the_limits_is_told_them(
    torch_version: pytest.MonkeyPatch, installed: str, limits: str
) -> None:
    torch_version.setattr(module, "version", lambda _: installed)
    assert host_allocator_limits() == limits


def test_blocks_that_are_not_rounded_are_not_kept_either() -> None:
    """A smaller block that was kept would be given to a larger request."""
    limits = dict(pair.split(":") for pair in LIMITS.split(","))
    assert limits["pinned_max_round_threshold_mb"] == limits["pinned_max_cached_size_mb"] == str(CACHED_MIB)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, float("inf")),
        ({"PYTORCH_ALLOC_CONF": LIMITS, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, float("inf")),
        ({"PYTORCH_CUDA_ALLOC_CONF": "pinned_max_cached_size_mb:32"}, 32 * MIB),
        ({"PYTORCH_ALLOC_CONF": f"expandable_segments:True,{LIMITS}"}, CACHED_MIB * MIB),
    ],
)
def test_the_operators_own_words_for_the_allocator_count(environment: dict[str, str], expected: float) -> None:
    assert rounded_below_bytes(environment) == expected


def test_without_limits_each_tensor_takes_a_power_of_two() -> None:
    assert page_locked_bytes([18 * MIB, 72 * MIB, 64 * MIB], float("inf")) == (32 + 128 + 64) * MIB
    assert page_locked_bytes([18 * MIB, 72 * MIB, 5 * MIB, 1], 8 * MIB) == (18 + 72 + 8) * MIB + 1


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (Runtime(), 0),
        (Runtime(offload="encoders"), 100 + 8),
        (Runtime(offload="group"), 18 + 72 + 100 + 8 + 4),
        (Runtime(offload="model"), 18 + 72 + 100 + 5 + 3),
        (Runtime(offload="encoders", page_lock=False), 100 + 5 + 2 * 100),
    ],
)
def test_what_waits_on_the_host_is_counted(runtime: Runtime, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rounded_below_bytes", lambda: CACHED_MIB * MIB)
    assert host_bytes(PARTS, runtime) == expected * MIB
