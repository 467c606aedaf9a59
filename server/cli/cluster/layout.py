"""Which engines a cluster should have, from cluster.toml and the nodes that are there. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.backends.cluster.roster import Engine, Roster
from server.cli.cluster.config import ClusterConfig, EngineTable

MIB = 2**20
OF_HOST = 0.5  # of its memory, for weights on a CPU
OF_GPU = 0.8
NODE = "darkroom-node"  # with its name
HEAD = "darkroom-head"  # on the first node
NODE_ID = "ray.io/node-id"  # Ray's own


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as Ray lists it. Its id is another one after each start."""

    id: str
    name: str
    address: str
    labels: Mapping[str, str]
    gpus: int
    is_alive: bool = True

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether the node has all of these labels."""
        return all(self.labels.get(name) == value for name, value in labels.items())


def plan_engines(config: ClusterConfig, nodes: Sequence[Node]) -> Roster:
    """Return the engines that a cluster should have. An engine per GPU belongs to its node; engines that the config
    gives as a number go where there is room."""
    usable = [node for node in nodes if node.is_alive]
    engines: list[Engine] = []
    for table in config.engines:
        fitting = [node for node in usable if node.has(table.nodes)]
        if table.count == "per-gpu":
            engines += [
                _engine(table, f"{table.kind}-{node.name}-{index}", [node], _node_labels(node), node.gpus)
                for node in fitting
                for index in range(node.gpus)
            ]
        elif table.kind != "image":
            engines.append(_engine(table, table.kind, fitting, {}, 1))
        else:
            first = sum(engine.kind == "image" for engine in engines)
            numbers = range(first, first + table.count)
            engines += [_engine(table, f"image-{n}", fitting, {}, table.count) for n in numbers]
    return Roster(tuple(engines))


def _node_labels(node: Node) -> dict[str, str]:
    """Return the labels of this node alone."""
    return {NODE: node.name} if NODE in node.labels else {NODE_ID: node.id}


def _engine(table: EngineTable, name: str, nodes: Sequence[Node], labels: Mapping[str, str], beside: int) -> Engine:
    key, share = ("darkroom-gpu-mib", OF_GPU) if table.device == "cuda" else ("darkroom-host-mib", OF_HOST / beside)
    room = min((int(node.labels.get(key, 0)) for node in nodes), default=0) * MIB * share
    models = frozenset(table.models) if table.models is not None else None
    return Engine(name, table.kind, table.device, models, {**table.nodes, **labels}, int(room), beside)
