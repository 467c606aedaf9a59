"""Swaps, undos and reloads of a server that is the only one: what is served, and what its files say then."""

import json
from pathlib import Path

import pytest

from server.catalog.images import CatalogError, load_catalog
from server.errors import BadRequest
from server.flows.catalog.edit import edited_text
from server.flows.catalog.update import CatalogUpdater
from server.state.served import ServedCatalog

BEFORE = '# mine\ncheckpoint = "one"  # the first\n'
MODEL, FILE = "alpha-image-2-count", "alpha-image-2.toml"


def checkpoint_of(served: ServedCatalog) -> str:
    return served.current.models[MODEL].checkpoint.path.name


def test_a_swap_changes_only_the_checkpoint() -> None:
    assert edited_text(BEFORE, "two", []) == BEFORE.replace('"one"', '"two"')


@pytest.mark.parametrize("broken", ["checkpoint = ", "a = 1\na = 2\n"])
def test_a_file_that_became_invalid_is_refused(broken: str) -> None:
    with pytest.raises(CatalogError):
        edited_text(broken, "two", [])


async def test_swaps_are_served_written_and_undone_one_by_one(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    texts = [(folders[0] / FILE).read_text()]
    for name in ("one", "two"):
        diff = await updater.swap(MODEL, name)
        assert (checkpoint_of(served), diff.saved) == (name, True)
        assert ("steps", 20, 28) in [(each.key, each.old, each.new) for each in diff.settings] or name == "two"
        texts.append((folders[0] / FILE).read_text())
        assert served.current == load_catalog(*folders)
    for name, text in (("one", texts[1]), ("starter-alpha", texts[0])):
        await updater.undo()
        assert (checkpoint_of(served), (folders[0] / FILE).read_text()) == (name, text)
    with pytest.raises(BadRequest, match="no swap to undo"):
        await updater.undo()


async def test_a_file_that_somebody_edited_is_swapped_as_it_is_and_not_undone(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    file = folders[0] / FILE
    file.write_text(file.read_text() + "# mine\n")
    await updater.swap(MODEL, "one")
    assert file.read_text().endswith("# mine\n")
    file.write_text(file.read_text() + "# and this\n")
    with pytest.raises(BadRequest, match=f"{FILE} has changed since the swap"):
        await updater.undo()
    assert checkpoint_of(served) == "one"


@pytest.mark.parametrize("broken", [b"checkpoint = ", b'checkpoint = "\xff"\n', b"steps = 0\n"])
async def test_a_catalog_that_became_invalid_is_refused_and_stays_as_it_is(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path], broken: bytes
) -> None:
    (folders[0] / FILE).write_bytes(broken)
    before = served.current
    with pytest.raises(BadRequest, match=r"Nothing has changed\. The catalog is refused"):
        await updater.swap(MODEL, "one")
    assert (served.current, (folders[0] / FILE).read_bytes()) == (before, broken)


async def test_a_file_that_is_gone_is_not_made_again(updater: CatalogUpdater, folders: tuple[Path, Path]) -> None:
    (folders[0] / FILE).unlink()
    with pytest.raises(BadRequest, match=f"{FILE} is no longer in the catalog. Reload first"):
        await updater.swap(MODEL, "one")
    assert not (folders[0] / FILE).exists()


async def test_swaps_of_a_folder_that_cannot_be_written_are_served_until_the_end(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    before = (folders[0] / FILE).read_text()
    for file in ("alpha-image-2.part", "alpha-image-2-2k.part"):
        (folders[0] / file).mkdir()  # where the new text would be written first
    assert not (await updater.swap(MODEL, "one")).saved
    other = next(model for model in served.current.models.values() if model.source.name != FILE)
    await updater.swap(other.name, "two", keep_settings=True)
    assert checkpoint_of(served) == "one", "another swap keeps it"
    assert (folders[0] / FILE).read_text() == before
    await updater.reload()
    assert checkpoint_of(served) == "starter-alpha"


async def test_a_symbolic_link_stays_one(updater: CatalogUpdater, folders: tuple[Path, Path], tmp_path: Path) -> None:
    real = (folders[0] / FILE).rename(tmp_path / "elsewhere.toml")
    (folders[0] / FILE).symlink_to(real)
    await updater.swap(MODEL, "one")
    assert (folders[0] / FILE).is_symlink()
    assert '"one"' in real.read_text()


async def test_a_swap_of_an_older_version_is_undone(
    updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    text = (folders[0] / FILE).read_text()
    before = edited_text(text, "one", [])
    whole_path = str(folders[0] / FILE)
    (tmp_path / "swaps.json").write_text(json.dumps([{"source": whole_path, "before": before, "after": text}]))
    await updater.undo()
    assert (checkpoint_of(served), (folders[0] / FILE).read_text()) == ("one", before)
