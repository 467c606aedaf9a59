"""The nodes of a Ray cluster that somebody else runs. Nobody says `join` there: a task on each compares it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import structlog
from ray.exceptions import RayError

from server.accounts.catalogs import CatalogContent
from server.cli.cluster.layout import NODE_ID, Node
from server.cli.cluster.node_properties import NodeProperties, compare_weights, describe_node, memory_labels
from server.errors import StartError
from server.settings import Settings

log = structlog.stdlib.get_logger("darkroom.cluster")


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """A node's memory for weights, as labels, and the reason why it can't be used, if there is one."""

    memory: Mapping[str, str]
    problem: str | None = None


def check_node(first: NodeProperties, content: CatalogContent | None) -> NodeFindings:
    """Compare the node that this runs on with the first one, by its own environment, and return what was found. Reads
    its weights."""
    settings = Settings()
    try:
        differences = describe_node(settings).differences(first)
        if not differences and content is not None:
            compare_weights(settings, content)
    except StartError as error:
        differences = [str(error)]
    return NodeFindings(memory_labels(settings), "; ".join(differences) or None)


class NodeChecker:
    """Examines the nodes of a cluster, each once. One that can't be used stays out until its Ray is started anew."""

    def __init__(self, first: NodeProperties) -> None:
        self._first = first
        self._asked: dict[Any, str] = {}  # ids of nodes, by the answers that are waited for
        self.found: dict[str, NodeFindings] = {}

    def poll(self, nodes: Sequence[Node], catalog: Callable[[], CatalogContent | None]) -> set[str]:
        """Ask the nodes that are new; returns the ids of those that have turned out to fit since the last look."""
        known = {*self.found, *self._asked.values()}
        new = [node for node in nodes if node.is_alive and node.id not in known]
        content = catalog() if new else None
        self._asked |= {self._request(node, content): node.id for node in new}
        answers, _ = ray.wait([*self._asked], num_returns=len(self._asked), timeout=0) if self._asked else ([], [])
        fitting: set[str] = set()
        for answer in answers:
            node_id = self._asked.pop(answer)
            try:
                found = self.found[node_id] = ray.get(answer)
            except RayError:  # the node has died; one that lives is asked again
                log.exception("a node could not be compared", node=node_id)
                continue
            if found.problem is None:
                fitting.add(node_id)
            else:
                log.error("a node is not used: it is not like the first one", node=node_id, differences=found.problem)
        return fitting

    def _request(self, node: Node, content: CatalogContent | None) -> Any:
        options = {"num_cpus": 0, "max_retries": 0, "label_selector": {NODE_ID: node.id}}
        return ray.remote(check_node).options(**options).remote(self._first, content)
