"""Which engines a cluster should have, from its file and its nodes."""

from server.backends.cluster.roster import Roster
from server.cli.cluster.config import ClusterConfig
from server.cli.cluster.layout import Node, plan_engines

GIB_80 = str(80 * 1024)


def config(*engines: dict[str, object]) -> ClusterConfig:
    return ClusterConfig.model_validate(
        {"database": "postgresql+psycopg://u@h/n", "storage": "s3://bucket", "engines": list(engines)}
    )


def node(name: str, gpus: int = 0, is_alive: bool = True, **labels: str) -> Node:
    labels |= {"darkroom-gpu-mib": GIB_80, "darkroom-node": name}
    return Node(f"id-of-{name}", name, "10.0.0.1", labels, gpus, is_alive)


def names(roster: Roster) -> list[str]:
    return [engine.name for engine in roster.engines]


def test_every_gpu_of_every_node_that_fits_gets_an_engine_of_its_own() -> None:
    roster = plan_engines(
        config({"kind": "image", "nodes": {"gpu": "a100"}}),
        [node("a", 2, gpu="a100"), node("b", 1, gpu="l4"), node("c", 1, gpu="a100")],
    )
    assert names(roster) == ["image-a-0", "image-a-1", "image-c-0"]
    assert roster.engines[0].labels == {"gpu": "a100", "darkroom-node": "a"}
    assert roster.engines[0].room_bytes == int(0.8 * 80 * 2**30)
    assert [engine.beside for engine in roster.engines] == [2, 2, 1]


def test_a_node_without_a_name_of_its_own_is_found_by_its_id() -> None:
    (engine,) = plan_engines(config({"kind": "image"}), [Node("id", "10.0.0.1", "10.0.0.1", {}, 1)]).engines
    assert (engine.name, engine.labels) == ("image-10.0.0.1-0", {"ray.io/node-id": "id"})


def test_nodes_that_are_gone_get_none() -> None:
    nodes = [node("a", 1), node("b", 1, is_alive=False)]
    assert names(plan_engines(config({"kind": "image"}), nodes)) == ["image-a-0"]


def test_a_number_of_engines_is_there_whatever_the_nodes_are() -> None:
    tables = [
        {"kind": "image", "count": 2, "device": "cpu"},
        {"kind": "image", "count": 1, "device": "cpu", "models": ["one"]},
        {"kind": "chat", "count": 1},
    ]
    roster = plan_engines(config(*tables), [])
    assert names(roster) == ["image-0", "image-1", "image-2", "chat"]
    assert roster.engines[2].models == {"one"}
    assert names(Roster(roster.of_kind("chat"))) == ["chat"]
