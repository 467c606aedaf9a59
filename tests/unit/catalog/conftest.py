"""A catalog and weights that a test may change."""

import shutil
from pathlib import Path

import pytest

from server.flows.checkpoints import CheckpointManager
from tests.support.harness import REPOSITORY


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The shipped catalog, and a folder with the starters."""
    shutil.copytree(REPOSITORY / "model_configs", tmp_path / "configs")
    (tmp_path / "weights").mkdir()
    for name in ("starter-alpha", "starter-beta", "starter-chat"):
        (tmp_path / "weights" / name).symlink_to(REPOSITORY / "weights" / name)
    return tmp_path / "configs", tmp_path / "weights"


@pytest.fixture
def manager(folders: tuple[Path, Path]) -> CheckpointManager:
    return CheckpointManager(*folders)
