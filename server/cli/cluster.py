"""`darkroom cluster`: the engines of a Ray cluster, and how a node is taken out. The rest is Ray's: `ray start`, `ray
stop`."""

import json
import socket
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from pipelines.protocol.machine import extra_command
from server.cli.environment import open_database, read_settings
from server.cli.printing import JsonFlag, show_rows
from server.errors import StartError

if TYPE_CHECKING:
    from server.accounts.gateways import GatewayReport

app = typer.Typer(no_args_is_help=True, help="Engines on several machines, by Ray (docs/guides/cluster.md).")

NODES = {"address": "Address", "name": "Name", "gpus": "GPUs", "labels": "Labels", "head": "Head"}
ENGINES = {
    "name": "Engine", "state": "State", "node": "Node", "device": "Device",
    "checkpoints": "Checkpoints", "jobs": "Jobs", "servers": "Servers", "workers_started": "Starts",
}  # fmt: skip
SERVERS = {"url": "Server", "alive": "Alive", "catalog_version": "Catalog"}
HEAD = "node:__internal_head__"  # Ray's resource of the head node
ANSWER_S = 10.0  # an engine without a place never answers


@app.command()
def status(as_json: JsonFlag = False) -> None:
    """Show the nodes, the engines and the servers."""
    _require_ray()
    gateways = _list_servers()
    from server.backends.cluster.ray_cluster import connect, gpus_of, list_nodes

    connect()
    listed = list_nodes()
    nodes = [
        {
            "address": node["NodeManagerAddress"],
            "name": node["NodeName"],
            "gpus": gpus_of(node),
            "labels": [f"{name}={text}" for name, text in node["Labels"].items() if not name.startswith("ray.io/")],
            "head": HEAD in node["Resources"],
        }
        for node in listed
    ]
    names = {node["NodeID"]: node["NodeName"] for node in listed}
    engines = [{"name": name, **found, "node": names.get(found["node"])} for name, (_, found) in _ask_engines().items()]
    servers = [{name: getattr(gateway, name) for name in SERVERS} for gateway in gateways]
    if as_json:
        typer.echo(json.dumps({"nodes": nodes, "engines": engines, "servers": servers}, indent=2))
        return
    show_rows("Nodes", NODES, nodes, as_json=False, as_csv=False)
    show_rows("Engines", ENGINES, engines, as_json=False, as_csv=False)
    show_rows("Servers", SERVERS, servers, as_json=False, as_csv=False)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(help="A node, by its address or its name in Ray.")],
    limit_s: Annotated[float, typer.Option(help="How long to wait for the jobs that run there.")] = 900,
) -> None:
    """Take a node out of use: its engines end with their jobs, then Ray ends there. Stop a server there before."""
    _require_ray()
    servers = _list_servers()
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION  # type: ignore[attr-defined]

    from server.backends.cluster.ray_cluster import connect, list_nodes

    connect()
    found = [each for each in list_nodes() if node in {each["NodeManagerAddress"], each["NodeName"]}]
    if len(found) != 1:
        raise StartError(f"{len(found)} nodes that run are called {node}: see `darkroom cluster status`.")
    if HEAD in found[0]["Resources"]:
        raise StartError(f"{node} is Ray's head: stop all servers, then `ray stop` there ends the cluster.")
    if here := [each.url for each in servers if each.alive and _address_of(each.url) == found[0]["NodeManagerAddress"]]:
        raise StartError(f"The server {here[0]} runs on {node}, and would end with Ray there: stop it first.")
    # as `ray drain-node` does: Ray puts nothing there any more, and ends there when nothing runs
    gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
    gcs.drain_node(found[0]["NodeID"], DRAIN_NODE_REASON_PREEMPTION, "darkroom cluster drain", 0)
    until = time.monotonic() + limit_s
    while there := [actor for actor, described in _ask_engines().values() if described["node"] == found[0]["NodeID"]]:
        left = until - time.monotonic()
        if ray.wait([actor.leave.remote() for actor in there], num_returns=len(there), timeout=max(0, left))[1]:
            raise StartError(f"{node} is drained no further: jobs still run there after {limit_s:.0f} s.")
        for actor in there:
            ray.kill(actor, no_restart=False)  # it starts elsewhere, if there is a place
    typer.echo(f"No engine runs on {node} any more, and Ray ends there. `ray start` there brings it back.")


def _list_servers() -> "list[GatewayReport]":
    from server.accounts.gateways import GatewayStore

    return GatewayStore(open_database(read_settings()), "", None, 0).list_all()


def _address_of(url: str | None) -> str | None:
    try:
        return socket.gethostbyname(urlsplit(url or "").hostname or "")
    except OSError:
        return None


def _require_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise StartError(f"This needs Ray, which is not installed: {extra_command('cluster')}")


def _ask_engines() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return each engine's actor, and what it says of itself, by its name."""
    import ray
    from ray.exceptions import RayError

    from server.backends.cluster.ray_cluster import actor_names
    from server.backends.cluster.transport import NAMESPACE

    actors = {name: ray.get_actor(name, NAMESPACE) for name in sorted(actor_names())}
    answers: dict[str, Any] = {name: actor.describe.remote() for name, actor in actors.items()}
    if answers:
        ray.wait([*answers.values()], num_returns=len(answers), timeout=ANSWER_S)
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, answer in answers.items():
        try:
            found[name] = (actors[name], ray.get(answer, timeout=0))
        except RayError:
            found[name] = (actors[name], {"state": "waiting for a node", "node": None})
    return found
