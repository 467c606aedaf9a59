"""The actor that keeps a cluster's engines and gateways there.

It looks every second. An engine or gateway that has died, or belongs to a node that has come or come back, is made; so
no actor restarts by itself, and none of its calls is ever repeated. It runs on the first node and ends with it.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import structlog
from ray.exceptions import RayError

from server.accounts.catalogs import CatalogContent, CatalogStore
from server.accounts.cluster_nodes import ClusterNodeStore
from server.accounts.db import connect_database
from server.backends.cluster.engine_actor import OPTIONS as ENGINE_OPTIONS
from server.backends.cluster.engine_actor import EngineActor
from server.backends.cluster.roster import NAMESPACE, SUPERVISOR, Engine, Roster
from server.cli.cluster.config import ClusterConfig
from server.cli.cluster.gateway import OPTIONS as GATEWAY_OPTIONS
from server.cli.cluster.gateway import Gateway
from server.cli.cluster.layout import HEAD, NODE, NODE_ID, Node, plan_engines
from server.cli.cluster.node_checks import NodeChecker
from server.cli.cluster.node_properties import NodeProperties
from server.cli.cluster.token import ClusterSecrets

log = structlog.stdlib.get_logger("darkroom.cluster")

POLL_EVERY_S = 1.0
TRY_EVERY_S = 5.0  # to make the same actor again
ANSWER_S = 2.0  # for an actor's state
MAX_CALLS = 32

State = Mapping[str, Any]


class Supervisor:
    """The supervisor of a cluster, one for each, on the node with the label HEAD."""

    def __init__(
        self, config: ClusterConfig, properties: NodeProperties, secrets: ClusterSecrets, *, as_guest: bool = False
    ) -> None:
        self._config = config
        self._properties = properties
        self._secrets = secrets
        self._node_checker = NodeChecker(properties) if as_guest else None
        self._roster = Roster(())
        self._actors: dict[str, Any] = {}
        self._states: dict[str, State] = {}
        self._asked: dict[Any, str] = {}  # answers that are waited for
        self._tried: dict[str, float] = {}
        self._drained: set[str] = set()
        self._admitted: set[str] = set()
        self._is_read = False  # what the database knows of the nodes
        self._asked_to_end: set[str] = set()  # gateways that were told to end
        self._leaving: dict[Any, str] = {}  # engines of drained nodes, by the answer that they have left
        self._seen: set[str] = set()
        self._stopping = False
        self._lock = threading.Lock()
        threading.Thread(target=self._keep, name="supervisor", daemon=True).start()

    def properties(self) -> NodeProperties:
        """Return the properties that all nodes must have."""
        return self._properties

    def catalog(self) -> CatalogContent | None:
        """Return the catalog that the gateways serve, for a node that joins to compare its weights with."""
        with connect_database(self._config.database) as database:
            current = CatalogStore(database).current()
        return current.content if current is not None else None

    def admit(self, name: str) -> None:
        """Let a node be used from now on: it has compared itself with the first one. Raises DatabaseBusy."""
        ids = {node.id for node in list_nodes() if node.is_alive and node.name == name}
        with connect_database(self._config.database) as database:
            ClusterNodeStore(database).admit(ids)
        with self._lock:
            self._admitted |= ids

    def _read_nodes(self) -> None:
        """Read which nodes are used: at the start the first node; after a restart of this actor, those of the
        database."""
        nodes = [node for node in list_nodes() if node.is_alive]
        with connect_database(self._config.database) as database:
            store = ClusterNodeStore(database)
            store.keep([node.id for node in nodes])
            known = store.read()
            first = [node.id for node in nodes if HEAD in node.labels and node.id not in known.admitted]
            store.admit(first)
        self._admitted |= {*first, *known.admitted}
        self._drained |= known.drained
        self._is_read = True

    def roster(self) -> Roster:
        """Return the engines that servers use: of image engines, those that have been there once."""
        return Roster(tuple(each for each in self._roster.engines if each.kind != "image" or each.name in self._seen))

    def status(self) -> dict[str, Any]:
        """Describe the cluster for people: `darkroom cluster status`."""
        nodes = list_nodes()
        names = {node.id: node.name for node in nodes}
        engines = [
            {"name": each.name, "kind": each.kind, **self._show_engine(each.name, names)}
            for each in self._roster.engines
        ]
        gateways = [{"name": name, **self._show_engine(name, names)} for name in self._gateways()]
        return {
            "nodes": [
                self._shown_node(node) for node in nodes if self._node_checker is not None or NODE in node.labels
            ],
            "engines": engines,
            "gateways": gateways,
        }

    def drain(self, name: str) -> list[str]:
        """Take a node, by its name or address, out of use: its engines end with their jobs, its gateways with their
        calls. Returns which. Raises ValueError if there is no such node, and DatabaseBusy."""
        ids = {node.id for node in list_nodes() if node.is_alive and name in {node.name, node.address}}
        if not ids:
            raise ValueError(f"no node that runs is called {name}")
        with connect_database(self._config.database) as database:
            ClusterNodeStore(database).drain(ids)
        with self._lock:
            self._drained |= ids
            return self._end_drained()

    def shutdown(self, limit_s: float) -> None:
        """End everything: gateways when their calls have ended, then the engines. Serve ends those of a guest: they
        have gone when no engine is linked to one."""
        deadline = time.monotonic() + limit_s
        while self._node_checker is not None and self._is_linked and time.monotonic() < deadline:
            time.sleep(POLL_EVERY_S)
        self._stopping = True
        with self._lock:
            gateways = [name for name in self._gateways() if name in self._actors]
            for name in gateways:
                self._end(name)
        while set(gateways) & list_actors() and time.monotonic() < deadline:
            time.sleep(POLL_EVERY_S)
        for name in {*self._actors}:
            ray.kill(self._actors[name])

    def _end_drained(self) -> list[str]:
        """End the actors on nodes that were taken out of use, also those that were told to end before this actor's
        restart, and those that had not told yet where they are."""
        found = [
            name for name, state in self._states.items() if state["node"] in self._drained and name in self._actors
        ]
        for name in found:
            self._end(name)
        return found

    def _end(self, name: str) -> None:
        """Telling a gateway twice would end its calls."""
        if name not in self._gateways():
            if name not in self._leaving.values():
                self._leaving[self._actors[name].leave.remote()] = name
        elif name not in self._asked_to_end and not self._states.get(name, {}).get("leaving"):
            self._asked_to_end.add(name)
            self._actors[name].stop.remote()

    def _keep(self) -> None:
        while not self._stopping:
            try:
                with self._lock:
                    self._poll()
            except Exception:  # such as a busy GCS: look again
                log.exception("the supervisor failed")
            self._read_states()
            time.sleep(POLL_EVERY_S)

    def _poll(self) -> None:
        if not self._is_read:
            self._read_nodes()
        nodes = list_nodes()
        if self._node_checker is not None:
            nodes = self._check_new_nodes(nodes, self._node_checker)
        self._roster = plan_engines(self._config, [node for node in nodes if node.id in self._usable_nodes])
        self._end_drained()
        left, _ = (
            ray.wait(list(self._leaving), num_returns=len(self._leaving), timeout=0) if self._leaving else ([], [])
        )
        for answer in left:
            if (actor := self._actors.pop(self._leaving.pop(answer), None)) is not None:
                ray.kill(actor)
        there = list_actors()
        for name in {*self._actors} - there:
            del self._actors[name]
            self._states.pop(name, None)
            self._asked_to_end.discard(name)
        for name in there - {*self._actors, SUPERVISOR}:  # from before this actor's restart
            self._actors[name] = ray.get_actor(name, NAMESPACE)
        for engine in self._roster.engines if self._usable_nodes else ():
            if self._is_missing(engine.name, there):
                self._make_engine(engine)
        for index, name in enumerate(self._gateways()):
            if self.roster().of_kind("image") and self._is_missing(name, there):
                self._make_gateway(name, index)

    def _check_new_nodes(self, nodes: Sequence[Node], node_checker: NodeChecker) -> list[Node]:
        """Return the nodes with labels of their memory for weights; those that fit are used from now on."""
        if fitting := node_checker.poll(nodes, self.catalog) - self._admitted:
            with connect_database(self._config.database) as database:
                ClusterNodeStore(database).admit(fitting)
            self._admitted |= fitting
        memory = {id_: found.memory for id_, found in node_checker.found.items()}
        return [replace(node, labels={**node.labels, **memory.get(node.id, {})}) for node in nodes]

    def _is_missing(self, name: str, there: set[str]) -> bool:
        if name in there or time.monotonic() - self._tried.get(name, -TRY_EVERY_S) < TRY_EVERY_S:
            return False
        self._tried[name] = time.monotonic()
        log.info("making an actor", name=name)
        return True

    def _make_engine(self, engine: Engine) -> None:
        gpus = 1 if engine.device == "cuda" else 0
        options = {**ENGINE_OPTIONS, **self._actor_options(engine.labels), "name": engine.name, "num_gpus": gpus}
        self._actors[engine.name] = ray.remote(EngineActor).options(**options).remote(engine)

    def _make_gateway(self, name: str, index: int) -> None:
        options = {**GATEWAY_OPTIONS, **self._actor_options({}), "name": name}
        self._actors[name] = ray.remote(Gateway).options(**options).remote(name, index, self._config, self._secrets)

    def _actor_options(self, labels: Mapping[str, str]) -> dict[str, Any]:
        selector = {NODE_ID: f"in({','.join(sorted(self._usable_nodes))})", **labels}
        return {"namespace": NAMESPACE, "label_selector": selector, "scheduling_strategy": "SPREAD"}

    @property
    def _usable_nodes(self) -> set[str]:
        return self._admitted - self._drained

    @property
    def _is_linked(self) -> bool:
        return any(state.get("servers") for state in list(self._states.values()))

    def _gateways(self) -> list[str]:
        """Serve makes those of a guest."""
        return [f"gateway-{index}" for index in range(self._config.gateways)] if self._node_checker is None else []

    def _read_states(self) -> None:
        for name, actor in list(self._actors.items()):
            if name not in self._asked.values():
                self._asked[actor.state.remote()] = name
        if self._asked:
            answers, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=ANSWER_S)
            for answer in answers:
                name = self._asked.pop(answer)
                try:
                    self._states[name] = ray.get(answer)
                    self._seen.add(name)
                except RayError:  # it has died, and is made again
                    self._states.pop(name, None)

    def _show_engine(self, name: str, nodes: Mapping[str, str]) -> dict[str, Any]:
        state = dict(self._states.get(name, {}))
        if name not in self._actors or "node" not in state:
            return {"state": "waiting for a node", "node": None}
        word = "leaving" if state.get("leaving") else "ready" if state.get("ready") else "starting"
        return {**state, "state": word, "node": nodes.get(state["node"])}

    def _shown_node(self, node: Node) -> dict[str, Any]:
        state = "drained" if node.id in self._drained else "ok" if node.id in self._admitted else "joining"
        found = self._node_checker.found.get(node.id) if self._node_checker is not None else None
        state = "refused" if found is not None and found.problem is not None else state
        labels = {key: value for key, value in node.labels.items() if not key.startswith(("darkroom", "ray.io/"))}
        return {
            "name": node.name,
            "address": node.address,
            "state": state if node.is_alive else "gone",
            "gpus": node.gpus,
            "labels": labels,
            "head": HEAD in node.labels,
        }


def list_actors() -> set[str]:
    """Return the names of the cluster's own actors: Serve has others."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["namespace"] == NAMESPACE}


def list_nodes() -> list[Node]:
    """List the nodes as Ray knows them; of nodes that have come back, only as they are now."""
    nodes = [
        Node(
            id=node["NodeID"],
            name=node.get("Labels", {}).get(NODE, node["NodeName"]),
            address=node["NodeManagerAddress"],
            labels=node.get("Labels", {}),
            gpus=int(node["Resources"].get("GPU", 0)),
            is_alive=node["Alive"],
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray has no types for it
    ]
    alive = {node.name for node in nodes if node.is_alive}
    gone = {node.name: node for node in nodes if not node.is_alive and node.name not in alive}
    return [*(node for node in nodes if node.is_alive), *gone.values()]
