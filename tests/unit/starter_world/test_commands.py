"""`darkroom starters`: what can be told before anything is trained or measured."""

from pathlib import Path

import pytest

from server.cli.serve import STARTERS, train_starters
from server.errors import StartError
from starters.build import NAMES, build_starters


def test_an_unknown_starter_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"starter-gamma.*starter-alpha, starter-beta, starter-chat"):
        train_starters(tmp_path, ["starter-alpha", "starter-gamma"], None, onward=False)
    assert not list(tmp_path.iterdir())


def test_the_server_and_the_trainer_mean_the_same_starters() -> None:
    assert set(NAMES) == set(STARTERS)


def test_a_trained_starter_is_never_built_over(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("its model card")
    assert build_starters(tmp_path, force=True) == []
    assert [folder.read_text() for folder in tmp_path.glob("*/README.md")] == ["its model card"] * len(NAMES)
