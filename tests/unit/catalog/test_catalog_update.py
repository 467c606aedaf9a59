"""Writing a swap into the catalog's file."""

from pathlib import Path

import pytest

from server.flows.catalog.edit import edit_catalog_file

BEFORE = '# mine\ncheckpoint = "one"  # the first\n'


def test_a_swap_changes_only_the_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "alpha.toml"
    source.write_text(BEFORE)
    assert edit_catalog_file(source, "two", [])
    assert source.read_text() == BEFORE.replace('"one"', '"two"')


@pytest.mark.parametrize("broken", [b"checkpoint = ", b"a = 1\na = 2\n", b'checkpoint = "\xff"\n'])
def test_a_file_that_became_invalid_is_not_written(tmp_path: Path, broken: bytes) -> None:
    source = tmp_path / "alpha.toml"
    source.write_bytes(broken)
    assert not edit_catalog_file(source, "two", [])
    assert source.read_bytes() == broken


def test_a_folder_that_is_not_writable_is_no_error(tmp_path: Path) -> None:
    assert not edit_catalog_file(tmp_path / "gone" / "alpha.toml", "two", [])
