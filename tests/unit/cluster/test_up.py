"""What `darkroom cluster up` refuses before anything runs."""

from pathlib import Path

import pytest
from rich.console import Console

from server.cli.cluster.config import ClusterConfig
from server.cli.cluster.ray_node import start_node
from server.cli.cluster.starting import prepare_database
from server.cli.cluster.token import derive_secrets
from server.errors import StartError
from server.settings import Settings


def test_a_store_that_takes_no_file_is_named(tmp_path: Path) -> None:
    given = {"database": "postgresql+psycopg://u@h/n", "storage": "file:///proc/none", "engines": [{"kind": "image"}]}
    config = ClusterConfig.model_validate(given)
    with pytest.raises(StartError, match=r"storage: file:///proc/none can't be written: .*No such file"):
        prepare_database(Settings(home=tmp_path), config, derive_secrets("a" * 64), Console())


@pytest.mark.parametrize("head", ["box", "box:", ":6379", "box:port"])
def test_an_address_without_a_port_is_named(tmp_path: Path, head: str) -> None:
    with pytest.raises(StartError, match=r"--head: expected the first node as HOST:PORT, .* got"):
        start_node(tmp_path, "b", head, 0, None, {})
