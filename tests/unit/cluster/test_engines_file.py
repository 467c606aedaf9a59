"""cluster.toml: what is refused, in words that help, and which engines it makes of nodes."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.backends.cluster.engines_file import ClusterFile, Engine, Node, engines_hash, plan_engines, read_engines
from server.errors import StartError
from tests.support.harness import REPOSITORY

GOOD = """
[[engines]]
kind = "image"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def planned(nodes: list[Node], *tables: dict[str, object]) -> list[Engine]:
    return plan_engines(ClusterFile.model_validate({"engines": list(tables)}).engines, nodes)


def test_an_engine_per_gpu_is_the_default(tmp_path: Path) -> None:
    (table,) = read_engines(written(tmp_path, GOOD), ("one",))
    assert (table.count, table.device) == ("per-gpu", "cuda")
    (other,) = read_engines(written(tmp_path, GOOD + "count = 2"), ())
    (same,) = read_engines(written(tmp_path, f"# a remark\n{GOOD}"), ())
    assert engines_hash([table]) == engines_hash([same]) != engines_hash([other])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "image"', 'kind = "video"', "line 3: engines.0..kind: got 'video'"),
        ('kind = "image"', 'kind = "chat"\ncount = 1', "expected image engines among the"),
        ('kind = "image"', 'kind = "image"\ncount = 0', "line 4: engines.0..count"),
        ('kind = "image"', 'kind = "image"\ndevice = "cpu"', "expected a number as the count of engines on the CPU"),
        (
            'kind = "image"',
            'kind = "image"\n[[engines]]\nkind = "chat"\ncount = 2',
            "expected count = 1: there is one chat engine",
        ),
        ('kind = "image"', 'kind = "image"\nmodels = ["two"]', "'two' is not an image model; expected one of one"),
        ('kind = "image"', 'kind = "image"\nnodes = { gpu = "A 100" }', "line 4: engines.0..nodes"),
        ("[[engines]]", 'servers = "x"\n[[engines]]', "line 2: servers: unknown key"),
        ("[[engines]]", 'database = "x"\ngateways = 2\n[[engines]]', r"database, gateways belong elsewhere now \(docs"),
        (GOOD, "", "engines: missing"),
        (GOOD, "= 2", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        read_engines(written(tmp_path, GOOD.replace(old, new)), ("one",))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cluster\.toml: can't be read"):
        read_engines(tmp_path / "cluster.toml", ())


def test_every_gpu_of_the_nodes_that_fit_gets_an_engine() -> None:
    nodes = [Node({"gpu": "a100", "rack": "1"}, 2), Node({"gpu": "l4"}, 1), Node({"gpu": "a100"}, 1), Node({}, 4)]
    engines = planned(nodes, {"kind": "image", "nodes": {"gpu": "a100"}}, {"kind": "image", "nodes": {"gpu": "l4"}})
    assert [engine.name for engine in engines] == ["image-0-0", "image-0-1", "image-0-2", "image-1-0"]
    assert engines[0] == Engine("image-0-0", "image", "cuda", None, {"gpu": "a100"}, None)


def test_a_number_of_engines_is_there_whatever_the_nodes_are() -> None:
    tables = [
        {"kind": "image", "count": 2, "device": "cpu"},
        {"kind": "image", "count": 1, "device": "cpu", "models": ["one"]},
        {"kind": "chat", "count": 1},
    ]
    engines = planned([], *tables)
    assert [engine.name for engine in engines] == ["image-0-0", "image-0-1", "image-1-0", "chat"]
    assert (engines[2].models, engines[0].beside) == ({"one"}, 2)


@pytest.mark.slow
def test_without_ray_the_cluster_is_refused_in_one_line() -> None:
    hidden = "import sys; sys.modules['ray'] = None; from server.cli.app import main; main()"
    command = [sys.executable, "-c", hidden, "cluster", "status"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=600, check=False)
    said = ["This needs Ray, which is not installed: make install EXTRAS=cluster"]
    assert (ended.returncode, ended.stderr.splitlines()) == (1, said)
