"""The sums of a swap's weights: another one than the published is refused, and nothing else waits for them."""

import asyncio
import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.checkpoints.folder.sums import sha256_of
from server.accounts.catalogs import Edit
from server.errors import BadRequest, Conflict
from server.flows.catalog.switch import CatalogDiff, Send
from server.flows.catalog.update import CatalogUpdater, MakeChange
from server.flows.operators.checkpoints import CheckpointManager
from server.schemas.admin import Stage
from server.state.served import ServedCatalog
from tests.support.polling import eventually
from tests.unit.catalog.conftest import Workers

MODEL, FILE, OTHERS = "alpha-image-2-count", "alpha-image-2.toml", "beta-2.5-flash-image-count"
BYTES = 2**41  # of a sparse file: many minutes to read
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def checkpoint_of(served: ServedCatalog, model: str = MODEL) -> str:
    return served.current.models[model].checkpoint.path.name


@pytest.fixture
def huge(folders: tuple[Path, Path], served: ServedCatalog) -> Path:
    """The checkpoint "one" with a denoiser that takes many minutes to read."""
    folder = folders[1] / "one"
    header = json.dumps({"weight": {"dtype": "F16", "shape": [BYTES // 2], "data_offsets": [0, BYTES]}}).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + BYTES)
    return folder


def publish(folder: Path) -> None:
    folder.with_name(f"{folder.name}.sha256").write_text(f"{'a' * 64}  {folder.name}/{WEIGHTS}\n")


class Begun:
    """A swap that is under way, and how far it is."""

    def __init__(self, updater: CatalogUpdater, model: str, checkpoint: str) -> None:
        self.stages: list[Stage] = []
        self.task = asyncio.create_task(updater.swap(model, checkpoint, self.stages.append))

    async def reaches(self, stage: Stage) -> None:
        await eventually(lambda: stage in self.stages or self.task.done())
        assert not self.task.done(), self.task.result()

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def test_another_sum_than_the_published_one_is_refused(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    before, text = served.current, (folders[0] / FILE).read_text()
    publish(folders[1] / "one")
    with pytest.raises(BadRequest, match=f"Nothing has changed.*one/{WEIGHTS}.*aaaaaaaaaaaa") as refused:
        await updater.swap(MODEL, "one")
    assert refused.value.code == "checkpoint_failed"
    assert (served.current, (folders[0] / FILE).read_text()) == (before, text)
    assert not served.lock.locked()
    (folders[1] / "one.sha256").unlink()
    assert "sha256" in (await updater.swap(MODEL, "one")).loaded["one"]
    assert checkpoint_of(served) == "one"


async def test_a_checkpoint_that_does_not_load_is_refused_without_its_sum(
    updater: CatalogUpdater, served: ServedCatalog, workers: Workers, huge: Path, tmp_path: Path
) -> None:
    publish(huge)
    workers.refuse = lambda spec: "takes 2048.0 GiB" if spec.path == huge else None
    with pytest.raises(BadRequest, match=r"takes 2048\.0 GiB"):
        await updater.swap(MODEL, "one")
    assert checkpoint_of(served) == "starter-alpha"
    known = tmp_path / "digests.json"
    assert not known.exists() or str(huge / WEIGHTS) not in known.read_text()


@pytest.mark.parametrize("published", [False, True])
async def test_a_swap_does_not_wait_for_the_sums_of_another(
    updater: CatalogUpdater, served: ServedCatalog, huge: Path, *, published: bool
) -> None:
    if published:
        publish(huge)
    first = Begun(updater, MODEL, "one")
    await first.reaches("hashing")
    assert checkpoint_of(served) == ("starter-alpha" if published else "one"), "what may be damaged is not served"
    await updater.swap(OTHERS, "two")
    assert checkpoint_of(served, OTHERS) == "two"
    await first.end()
    assert not served.lock.locked()


async def test_swaps_at_once_are_made_one_on_top_of_the_other(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    for name in ("one", "two"):
        weights = folders[1] / name / WEIGHTS
        (folders[1] / f"{name}.sha256").write_text(f"{sha256_of(weights)}  {name}/{WEIGHTS}\n")
    diffs = await asyncio.gather(updater.swap(MODEL, "one"), updater.swap(OTHERS, "two"))
    assert (checkpoint_of(served), checkpoint_of(served, OTHERS)) == ("one", "two")
    assert [[*diff.loaded] for diff in diffs] == [["one"], ["two"]]
    for _ in range(2):
        await updater.undo()
    assert (checkpoint_of(served), checkpoint_of(served, OTHERS)) == ("starter-alpha", "starter-beta")


async def test_an_undo_takes_back_the_swap_that_was_the_latest_when_it_began(
    served: ServedCatalog, manager: CheckpointManager, tmp_path: Path
) -> None:
    class Overtaken:
        """Another swap is made while the undo waits for its sums."""

        async def change(self, make: MakeChange, _: Send) -> CatalogDiff:
            edits = [Edit("a.toml", "1", "2"), Edit("a.toml", "2", "3")]
            make({"a.toml": "2"}, edits[:1])
            make({"a.toml": "3"}, edits)
            raise AssertionError

    with pytest.raises(Conflict, match="another swap was made meanwhile"):
        await CatalogUpdater(served, Overtaken(), manager, tmp_path).undo()
