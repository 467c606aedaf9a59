"""What `darkroom cluster up` refuses before it starts anything, each in words that help."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.cli.cluster.config import read_config
from server.cli.cluster.ray_node import NO_RAY
from server.cli.cluster.token import derive, derive_secrets, make_token, read_token
from server.errors import StartError
from tests.support.harness import REPOSITORY

GOOD = """
database = "postgresql+psycopg://u@h/n"
storage = "s3://bucket/prefix"
[[engines]]
kind = "image"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_two_gateways_and_an_engine_per_gpu_are_the_default(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, GOOD), ("one",))
    assert (config.gateways, config.engines[0].count, config.engines[0].device) == (2, "per-gpu", "cuda")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("postgresql+psycopg://u@h/n", "sqlite:///books.db", "line 2: database: .*expected a PostgreSQL"),
        ("postgresql+psycopg://u@h/n", "books", "line 2: database: .*expected a URL"),
        ("s3://bucket/prefix", "/srv/results", "line 3: storage: .*a folder of one node will not do"),
        ("s3://bucket/prefix", "file://results", "line 3: storage: .*a folder of one node will not do"),
        ('kind = "image"', 'kind = "video"', "line 5: engines.0..kind: got 'video'"),
        ('kind = "image"', 'kind = "chat"\ncount = 1', "expected image engines among the"),
        ('kind = "image"', 'kind = "image"\ncount = 0', "line 6: engines.0..count"),
        ('kind = "image"', 'kind = "image"\ndevice = "cpu"', "expected a number as the count of engines on the CPU"),
        (
            'kind = "image"',
            'kind = "image"\n[[engines]]\nkind = "chat"\ncount = 2',
            "expected count = 1: there is one chat engine",
        ),
        ('kind = "image"', 'kind = "image"\nmodels = ["two"]', "'two' is not an image model; expected one of one"),
        ('kind = "image"', 'kind = "image"\nnodes = { gpu = "A 100" }', "line 6: engines.0..nodes"),
        ("[[engines]]", "gatewys = 2\n[[engines]]", "line 4: gatewys: unknown key"),
        (GOOD, "gateways = 2", "database: missing"),
        (GOOD, "= 2", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        read_config(written(tmp_path, GOOD.replace(old, new)), ("one",))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cluster\.toml: can't be read"):
        read_config(tmp_path / "cluster.toml", ())


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="There is no cluster token"):
        read_token(tmp_path)
    path = make_token(tmp_path)
    token = read_token(tmp_path)
    assert (make_token(tmp_path), read_token(tmp_path), path.stat().st_mode & 0o777) == (path, token, 0o600)
    path.chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        read_token(tmp_path)
    path.write_text("short")
    with pytest.raises(StartError, match="too short"):
        read_token(tmp_path)


def test_secrets_of_all_nodes_follow_from_the_token_and_tell_nothing_of_each_other() -> None:
    first, again, other = derive_secrets("a" * 64), derive_secrets("a" * 64), derive_secrets("b" * 64)
    assert first == again
    assert len({first.gateway, first.admin, other.gateway, other.admin, derive("a" * 64, "webhooks")}) == 5


@pytest.mark.slow
def test_without_ray_the_cluster_is_refused_in_one_line(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['ray'] = None; from server.cli.app import main; main()"
    command = [sys.executable, "-c", hidden, "cluster", "up", "--config", str(tmp_path / "cluster.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=600, check=False)
    assert (ended.returncode, ended.stderr.splitlines()) == (1, [NO_RAY])
