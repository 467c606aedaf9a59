"""A Ray cluster, as a server or a command sees it: its nodes, and its engines, which Ray makes where they are missing.

Every server asks Ray for the same engines by the same names, so it does not matter which of them comes first, and none
of them has to stay.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
import structlog
from ray.exceptions import RayError

from server.backends.cluster.engine_actor import OPTIONS, Compare, EngineActor, Offer
from server.backends.cluster.engines_file import Engine, EngineTable, Node, plan_engines
from server.backends.cluster.node_properties import NodeProperties
from server.backends.cluster.transport import NAMESPACE, RayLauncher
from server.errors import StartError

log = structlog.stdlib.get_logger("darkroom.cluster")

ANSWER_S = 2.0
FORGET_S = 60.0  # after which an engine that does not answer is none of the server's any more
TRY_EVERY_S = 1.0


class RayCluster:
    """The engines of cluster.toml, for one server with these properties. All methods block."""

    def __init__(self, tables: Sequence[EngineTable], properties: NodeProperties, compare: Compare) -> None:
        self.kinds = {table.kind for table in tables}
        self._tables = tables
        self._properties = properties
        self._compare = compare
        self._asked: dict[str, Any] = {}  # answers that are waited for
        self._found: dict[str, tuple[float, Offer]] = {}
        self._problems: dict[str, str | None] = {}
        connect()

    def wait_engines(self) -> list[Offer]:
        """Wait until there is an image engine, and return those that there are."""
        log.info("waiting for an image engine of the cluster")
        while not (engines := self.find_engines()):
            time.sleep(TRY_EVERY_S)
        return engines

    def find_engines(self) -> list[Offer]:
        """Have Ray make the engines that are missing, and return the image engines that may be used. Raises
        RayError."""
        there = actor_names()
        for engine in plan_engines(self._tables, [Node(each["Labels"], gpus_of(each)) for each in list_nodes()]):
            if engine.name not in there:
                self._make(engine)
        for name in there - self._asked.keys():
            with suppress(ValueError):  # it has just ended
                self._asked[name] = ray.get_actor(name, NAMESPACE).offer.remote(self._properties)
        answers, _ = ray.wait([*self._asked.values()], num_returns=len(self._asked), timeout=ANSWER_S)
        now = time.monotonic()
        for name in [name for name, answer in self._asked.items() if answer in answers]:
            self._record(name, self._asked.pop(name), now)
        self._found = {name: each for name, each in self._found.items() if each[0] > now - FORGET_S}
        return [each for _, (_, each) in sorted(self._found.items())]

    def launcher(self, name: str) -> RayLauncher:
        """Return the launcher of links to an engine."""
        return RayLauncher(name, self._properties)

    def _make(self, engine: Engine) -> None:
        options = {**OPTIONS, "name": engine.name, "namespace": NAMESPACE, "get_if_exists": True}
        options |= {"label_selector": dict(engine.labels), "num_gpus": 1 if engine.device == "cuda" else 0}
        ray.remote(EngineActor).options(**options).remote(engine, self._properties.engines, self._compare)

    def _record(self, name: str, answer: Any, now: float) -> None:
        problem: str | None
        try:
            offer: Offer = ray.get(answer)
        except RayError as error:  # Ray makes it again
            problem = str(error).strip().partition("\n")[0]
        else:
            problem = offer.problem
            if problem is None and offer.spec.kind == "image":
                self._found[name] = (now, offer)
        if problem is not None and self._problems.get(name) != problem:
            log.warning("an engine is not used", engine=name, reason=problem)
        self._problems[name] = problem


def connect() -> None:
    """Connect this process to the Ray of RAY_ADDRESS, else to the one that runs on this machine. If Ray ends on this
    machine, so does the process. Raises StartError."""
    try:
        ray.init(
            address="auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"worker_process_setup_hook": "darkroom.prepare_actor"},
        )
    except (RayError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StartError(f"This machine is no node of a Ray cluster that answers (`ray start`): {reason}") from error


def list_nodes() -> list[dict[str, Any]]:
    """List the nodes that run, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray has no types for it


def gpus_of(node: dict[str, Any]) -> int:
    """Return how many GPUs a node has."""
    return int(node["Resources"].get("GPU", 0))


def actor_names() -> set[str]:
    """Return the names of the engines, whether they have a place or not."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["namespace"] == NAMESPACE}
