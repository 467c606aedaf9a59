"""Which worker loads which checkpoint at start."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.protocol.images import CheckpointSpec
from server.backends.placement import Demand, place

SPEC = CheckpointSpec("c", Path("c"), None, "alpha", "img2img", 1)
WORKERS = ("0", "1", "2")


def demand(name: str, size: int, workers: tuple[str, ...] = WORKERS, replicas: int | None = None) -> Demand:
    return Demand((replace(SPEC, name=name, path=Path(name)),), size, frozenset(workers), replicas)


def names(demands: list[Demand], rooms: list[int], kept: dict[str, list[Demand]] | None = None) -> list[str]:
    """For each worker, the names in one text."""
    before = {worker: tuple(each.specs[0] for each in listed) for worker, listed in (kept or {}).items()}
    found = place(demands, dict(zip(WORKERS, rooms, strict=False)), before)
    return ["".join(spec.name for spec in found[worker]) for worker in sorted(found)]


def test_what_fits_everywhere_is_loaded_everywhere() -> None:
    assert names([demand("a", 3), demand("b", 4)], [10, 10]) == ["ab", "ab"]


def test_the_largest_gets_its_worker_first_and_the_rest_of_the_room_goes_to_copies() -> None:
    assert names([demand("a", 2), demand("b", 9), demand("c", 6)], [10, 10]) == ["b", "ac"]
    assert names([demand("a", 2), demand("b", 7), demand("c", 6)], [10, 10]) == ["ab", "ac"]


def test_every_checkpoint_has_a_worker_although_it_does_not_fit() -> None:
    assert names([demand("a", 20), demand("b", 20), demand("c", 20)], [10, 10]) in (["ac", "b"], ["a", "bc"])


def test_replicas_bound_the_copies_and_models_bound_the_workers() -> None:
    assert names([demand("a", 1, replicas=2)], [5, 9, 7]) == ["", "a", "a"]
    assert names([demand("a", 1, ("1",)), demand("b", 2)], [10, 10]) == ["b", "ab"]


def test_what_is_served_stays_and_the_new_one_goes_where_the_old_one_leaves_room() -> None:
    a, b, new = demand("a", 6), demand("b", 6), demand("n", 7)
    assert names([a, b], [10, 10], {"0": [a], "1": [b]}) == ["a", "b"]
    assert names([a, new], [10, 10], {"0": [a], "1": [b]}) == ["a", "n"]


def test_a_worker_that_is_down_keeps_its_checkpoints_and_gets_no_new_ones() -> None:
    a, b = demand("a", 1), demand("b", 1)
    assert names([a, b], [10], {"0": [a], "1": [a]}) == ["ab", "a"]


def test_a_worker_that_comes_gets_what_it_has_room_for_and_no_copies_beyond_those_wanted() -> None:
    a, b = demand("a", 6), demand("b", 3, replicas=1)
    assert names([a, b], [10, 10], {"0": [a, b]}) == ["ab", "a"]
    assert names([a, demand("c", 7)], [10, 6], {"0": [a]}) == ["a", "c"]


def test_checkpoints_that_share_their_weights_stay_together() -> None:
    first, second = SPEC, replace(SPEC, sampling=replace(SPEC.sampling, guidance=1.0))
    placed = place([Demand((first, second), 5, frozenset(WORKERS))], {"0": 4, "1": 9}, {"0": (first,), "1": ()})
    assert placed == {"0": (first, second), "1": ()}


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
def test_every_checkpoint_is_somewhere_and_copies_never_overfill_a_worker(sizes: list[int], rooms: list[int]) -> None:
    demands = [demand(chr(97 + index), size) for index, size in enumerate(sizes)]
    room_of = dict(zip(WORKERS, rooms, strict=False))
    found = place(demands, room_of, {})
    once = place([replace(each, replicas=1) for each in demands], room_of, {})
    size_of = {each.specs[0]: each.bytes for each in demands}
    assert {spec for specs in once.values() for spec in specs} == size_of.keys()
    assert sum(map(len, once.values())) == len(demands)
    for worker, specs in found.items():
        assert set(once[worker]) <= set(specs)
        if set(specs) - set(once[worker]):
            assert sum(size_of[spec] for spec in specs) <= room_of[worker]
