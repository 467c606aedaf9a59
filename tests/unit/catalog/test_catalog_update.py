"""Writing a swap into the catalog."""

from pathlib import Path

import pytest

from server.flows.catalog_update import _save

BEFORE = '# mine\ncheckpoint = "one"  # the first\n'


def test_a_swap_changes_one_value_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "alpha.toml"
    source.write_text(BEFORE)
    assert _save(source, "two")
    assert source.read_text() == BEFORE.replace('"one"', '"two"')


@pytest.mark.parametrize("broken", [b"checkpoint = ", b"a = 1\na = 2\n", b'checkpoint = "\xff"\n'])
def test_a_file_that_was_broken_meanwhile_is_left_alone(tmp_path: Path, broken: bytes) -> None:
    source = tmp_path / "alpha.toml"
    source.write_bytes(broken)
    assert not _save(source, "two")
    assert source.read_bytes() == broken


def test_a_folder_that_can_not_be_written_to_is_no_error(tmp_path: Path) -> None:
    assert not _save(tmp_path / "gone" / "alpha.toml", "two")
