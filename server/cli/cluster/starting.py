"""The work of the commands of `darkroom cluster`."""

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import typer
from rich.console import Console
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from server.accounts.db import connect_database
from server.backends.object_storage import open_storage
from server.catalog.images import CatalogError
from server.cli.cluster.config import ClusterConfig, read_config
from server.cli.cluster.layout import HEAD, NODE
from server.cli.cluster.node_properties import NodeProperties, compare_weights, describe_node, memory_labels
from server.cli.cluster.ray_node import (
    RayNode,
    connected,
    find_supervisor,
    read_node,
    require_ray,
    set_environment,
    start_node,
    stop_node,
)
from server.cli.cluster.status_tables import show_status
from server.cli.cluster.token import ClusterSecrets, derive_secrets, make_token, read_token
from server.cli.environment import read_catalog
from server.cli.reading import reading_shown
from server.cli.serve import create_first_key, create_webhook_secret, require_checkpoints
from server.errors import DatabaseBusy, StartError, StorageFailed
from server.flows.catalog.start import catalog_at_start
from server.settings import Settings

READY_LIMIT_S = 600.0
JOIN_LIMIT_S = 60.0
POLL_EVERY_S = 0.5
PLACED_S = 20.0  # after which an engine is somewhere, if there is a place for it

Status = dict[str, Any]  # as `Supervisor.status` says it


def start_cluster(settings: Settings, path: Path, name: str, labels: Mapping[str, str], ip: str | None) -> None:
    """Start a cluster on its first node, for `darkroom cluster up`. Raises StartError."""
    require_ray()
    catalog = read_catalog(settings)
    require_checkpoints(settings, catalog)
    config = read_config(path, tuple(catalog.models))
    make_token(settings.home)
    set_environment(settings.home)
    console, properties = Console(highlight=False, soft_wrap=True), describe_node(settings)
    secrets = derive_secrets(read_token(settings.home))
    prepare_database(settings, config, secrets, console)
    with console.status("Starting Ray, engines and gateways ..."):
        labels = _labels(settings, name, labels) | {HEAD: "true"}
        node = start_node(settings.home, name, None, config.ray_port, ip, labels)
        try:
            with connected(node.address) as ray:
                status = _start_supervisor(ray, config, properties, secrets)
        except BaseException:
            stop_node(settings.home)
            raise
    show_status(status)
    console.print(f"Further nodes:  darkroom cluster join --head {node.address}", markup=False)
    key = settings.home / "dev-key"
    if key.exists():
        console.print(f"Key             in {key}", markup=False)


def join_cluster(settings: Settings, head: str, name: str, labels: Mapping[str, str], ip: str | None) -> None:
    """Join this node to a cluster, for `darkroom cluster join`. Raises StartError."""
    require_ray()
    set_environment(settings.home)
    console, properties = Console(highlight=False, soft_wrap=True), describe_node(settings)
    with console.status("Joining ..."):
        node = start_node(settings.home, name, head, 0, ip, _labels(settings, name, labels))
    try:
        with connected(node.address) as ray:
            supervisor = find_supervisor(ray)
            with console.status("Comparing this node with the first one ..."):
                status = _compare(ray, supervisor, properties, name)
                content = ray.get(supervisor.catalog.remote(), timeout=JOIN_LIMIT_S)
            if content is not None:
                with reading_shown(console) as send:
                    compare_weights(settings, content, send)
            ray.get(supervisor.admit.remote(name), timeout=JOIN_LIMIT_S)
    except BaseException:
        stop_node(settings.home)
        raise
    show_status(status)
    console.print(f"This node is {name} of the cluster at {node.address}.", markup=False)


def read_status(settings: Settings) -> Status:
    """Read the cluster's status, for `darkroom cluster status`. Raises StartError."""
    with connected(_node(settings).address) as ray:
        status: Status = ray.get(find_supervisor(ray).status.remote(), timeout=JOIN_LIMIT_S)
    return status


def drain_node(settings: Settings, name: str, limit_s: float) -> None:
    """Take a node out of use, for `darkroom cluster drain`. Raises StartError."""
    with connected(_node(settings).address) as ray:
        supervisor = find_supervisor(ray)
        try:
            ray.get(supervisor.drain.remote(name), timeout=JOIN_LIMIT_S)
        except ray.exceptions.RayTaskError as error:
            raise StartError(str(error.cause)) from error

        def is_empty(status: Status) -> bool:
            nodes = {node["name"] for node in status["nodes"] if name in {node["name"], node["address"]}}
            return not any(each["node"] in nodes for each in (*status["engines"], *status["gateways"]))

        message = f"{name} is drained no further: jobs still run there after {limit_s:.0f} s."
        _wait(ray, supervisor, is_empty, limit_s, message)
    typer.echo(f"Nothing of Darkroom runs on {name} any more: `darkroom cluster down` there stops it.")


def stop(settings: Settings) -> None:
    """Stop the cluster, or this node's part of it, for `darkroom cluster down`. Raises StartError."""
    node = _node(settings)
    if node.is_head:
        with connected(node.address) as ray:
            limit_s = settings.drain_s + 30
            ray.get(find_supervisor(ray).shutdown.remote(limit_s), timeout=limit_s + JOIN_LIMIT_S)
    stop_node(settings.home)
    typer.echo("The cluster is down: run this on its other nodes too." if node.is_head else "This node has left.")


def _node(settings: Settings) -> RayNode:
    """Return Ray's processes on this node, after setting the environment for Ray. Raises StartError if there are
    none."""
    require_ray()
    node = read_node(settings.home)
    if node is None:
        raise StartError("This node is part of no cluster: `darkroom cluster up` or `join` first.")
    set_environment(settings.home)
    return node


def prepare_database(settings: Settings, config: ClusterConfig, secrets: ClusterSecrets, console: Console) -> None:
    """Prepare the database, at this version's schema with a catalog and a first key, and check that the storage
    answers. The home gets the secret of webhooks, for `darkroom keys webhook-secret`. Raises StartError."""
    from server.cli.cluster.gateway import gateway_settings

    as_gateway = gateway_settings(settings.home, "127.0.0.1", 0, config, secrets)
    try:
        with console.status("Asking the storage and the database ..."):
            _try_storage(config.storage)
            with connect_database(config.database) as database:
                database.migrate()
        with reading_shown(console) as send:
            create_first_key(as_gateway, catalog_at_start(as_gateway, send).catalog)
        create_webhook_secret(as_gateway)
    except CatalogError as error:
        raise StartError(str(error)) from error
    except (SQLAlchemyError, DatabaseBusy) as error:
        reason = error.reason if isinstance(error, DatabaseBusy) else _line(error)
        url = make_url(config.database).render_as_string(hide_password=True)
        raise StartError(f"database: {url} can't be used: {reason}") from error


def _try_storage(url: str) -> None:
    """Check that the storage takes a file. Raises StartError."""
    try:
        storage = open_storage(url)
        name = f"{secrets.token_hex(16)}.png"
        storage.write(name, b"")
        storage.delete([name])
    except (StorageFailed, OSError) as error:
        reason = error.reason if isinstance(error, StorageFailed) else _line(error)
        raise StartError(f"storage: {url} can't be written: {reason}") from error


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _labels(settings: Settings, name: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {**labels, NODE: name, **memory_labels(settings)}


def _start_supervisor(ray: Any, config: ClusterConfig, properties: NodeProperties, secrets: ClusterSecrets) -> Status:
    from server.backends.cluster.roster import NAMESPACE, SUPERVISOR
    from server.cli.cluster.supervisor import MAX_CALLS, Supervisor

    options = {"name": SUPERVISOR, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    options |= {"max_restarts": -1, "max_concurrency": MAX_CALLS, "label_selector": {HEAD: "true"}}
    supervisor = ray.remote(Supervisor).options(**options).remote(config, properties, secrets)
    began = time.monotonic()

    def is_up(status: Status) -> bool:
        answering = [gateway for gateway in status["gateways"] if gateway.get("url") and _is_serving(gateway["url"])]
        here = any(engine["kind"] == "image" and engine["node"] for engine in status["engines"])
        others_first = not here and time.monotonic() > began + PLACED_S  # no GPU for an engine before nodes join
        return others_first or len(answering) == len(status["gateways"])

    message = "The cluster is not ready; `darkroom cluster status` and the logs in Ray's folder say more."
    return _wait(ray, supervisor, is_up, READY_LIMIT_S, message)


def _is_serving(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _compare(ray: Any, supervisor: Any, properties: NodeProperties, name: str) -> Status:
    """Compare this node with the first one, and return the cluster's status. Raises StartError for a node that is not
    like the first one, or has another's name."""
    if differences := properties.differences(ray.get(supervisor.properties.remote(), timeout=JOIN_LIMIT_S)):
        raise StartError("This node is not like the first one:\n  " + "\n  ".join(differences))

    def is_only(status: Status) -> bool:
        """Return whether no other node has this name. A node that has crashed and is back at once is listed twice,
        until Ray has missed it."""
        same = [node for node in status["nodes"] if node["name"] == name and node["state"] != "gone"]
        return len(same) < 2

    message = f"Another node of the cluster is called {name}: give this one a --name."
    return _wait(ray, supervisor, is_only, JOIN_LIMIT_S, message)


def _wait(ray: Any, supervisor: Any, condition: Callable[[Status], bool], limit_s: float, message: str) -> Status:
    """Wait until the cluster's status meets the condition, and return it. Raises StartError with the message."""
    deadline = time.monotonic() + limit_s
    while not condition(status := ray.get(supervisor.status.remote(), timeout=JOIN_LIMIT_S)):
        if time.monotonic() > deadline:
            raise StartError(message)
        time.sleep(POLL_EVERY_S)
    return cast(Status, status)
