"""`serve run server.cluster:app config=cluster.toml`: a cluster on a Ray that somebody else runs, such as KubeRay.

Serve runs the gateways: the same app as `darkroom serve`, with Serve's proxies before it in place of our uvicorn. The
engines are not Serve's, but the same actors as those of `darkroom cluster up`, which a supervisor keeps there.
"""

import asyncio
import itertools
import os
import socket
import time
from pathlib import Path
from typing import IO, Any

import ray
import structlog
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from rich.console import Console
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from server.backends.cluster.roster import NAMESPACE, SUPERVISOR
from server.backends.engines import read_roster
from server.cli.cluster.config import ClusterConfig, read_config
from server.cli.cluster.gateway import gateway_settings, prepare_home
from server.cli.cluster.node_properties import describe_node
from server.cli.cluster.starting import prepare_database
from server.cli.cluster.supervisor import MAX_CALLS, Supervisor
from server.cli.cluster.token import ClusterSecrets, derive_secrets
from server.cli.environment import read_catalog
from server.cli.serve import prepare_app, require_checkpoints
from server.errors import StartError
from server.housekeeping import InUse, lock_home
from server.http.proxy_headers import TRUSTED_BY_DEFAULT, ProxyHeadersMiddleware, trusted_networks
from server.services import Services
from server.settings import Settings

log = structlog.stdlib.get_logger("darkroom.cluster")

POLL_EVERY_S = 0.5
NAME_LIMIT_S = 60.0  # until Ray has missed a supervisor that has died, and its name is free
MOST_REQUESTS = 10_000  # at once; Darkroom has limits of its own, whose refusals clients understand
ACTOR = {"num_cpus": 0}  # what a node has is for engines


class Arguments(BaseModel):
    """The arguments of `serve run`. `config` is a path on the machine that deploys."""

    config: Path = Path("cluster.toml")


def app(arguments: Arguments) -> serve.Application:
    """Build the application that Serve deploys. Raises StartError for a cluster that `darkroom cluster up` refuses
    too."""
    settings = Settings()
    if settings.cluster_secret is None:
        raise StartError("Set DARKROOM_CLUSTER_SECRET: 32 characters or more, such as of `openssl rand -hex 32`.")
    catalog = read_catalog(settings)
    require_checkpoints(settings, catalog)
    config = read_config(arguments.config, tuple(catalog.models))
    secrets = derive_secrets(settings.cluster_secret.get_secret_value())
    prepare_database(settings, config, secrets, Console(highlight=False, soft_wrap=True))
    patience_s = settings.drain_s + 30
    engines: Any = Engines  # what the decorators make of them has no types
    gateway: Any = Gateway
    replicas = gateway.options(num_replicas=config.gateways, graceful_shutdown_timeout_s=patience_s)
    keeper = engines.options(graceful_shutdown_timeout_s=patience_s + 30).bind(config, secrets, patience_s)
    deployed: serve.Application = replicas.bind(keeper, config, secrets)
    return deployed


@serve.deployment(ray_actor_options=ACTOR)
class Engines:
    """The Ray Serve deployment that holds the supervisor, which ends with it. Engines outlive both, unless the cluster
    is shut down."""

    def __init__(self, config: ClusterConfig, secrets: ClusterSecrets, patience_s: float) -> None:
        self._patience_s = patience_s
        supervisor: Any = ray.remote(Supervisor)
        properties = describe_node(Settings())
        options = {"name": SUPERVISOR, "namespace": NAMESPACE, "num_cpus": 0}
        options |= {"max_restarts": -1, "max_concurrency": MAX_CALLS}
        until = time.monotonic() + NAME_LIMIT_S
        while True:
            try:
                self._supervisor = supervisor.options(**options).remote(config, properties, secrets, as_guest=True)
                break
            except ValueError:  # the name of one that has just died
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_EVERY_S)
        ray.get(self._supervisor.properties.remote())

    def check_health(self) -> None:
        """Check that the supervisor answers, for Serve. Raises RayError."""
        ray.get(self._supervisor.properties.remote())

    async def __del__(self) -> None:
        """Shut the supervisor down once the gateways have gone: at a shutdown, not when this dies."""
        await self._supervisor.shutdown.remote(self._patience_s)


@serve.deployment(max_ongoing_requests=MOST_REQUESTS, ray_actor_options=ACTOR)
@serve.ingress()
class Gateway:
    """A replica of the Ray Serve deployment: a gateway with the first home of its node, and the first private port,
    that no other gateway uses."""

    def __init__(self, engines: Any, config: ClusterConfig, secrets: ClusterSecrets) -> None:
        os.umask(0o077)
        self._engines = engines  # so that Serve starts them first
        self._config = config
        self._secrets = secrets
        self._home: IO[str] | None = None

    async def __serve_build_asgi_app__(self) -> "ServedApp":
        return ServedApp(await asyncio.to_thread(self._prepare))

    def _prepare(self) -> FastAPI:
        own = Settings().home
        address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray has no types for it
        free = (index for index in itertools.count() if is_free(address, self._config.private_port + index))
        for index in free:
            try:
                self._home = lock_home(own / f"gateway-{index}" / "replica")
                break
            except InUse:
                continue
        cluster = ray.get_runtime_context().gcs_address
        home = own / f"gateway-{index}"
        settings = gateway_settings(home, address, index, self._config, self._secrets, cluster)
        prepare_home(settings, self._secrets)
        self._wait_for_engines(settings)
        return prepare_app(settings)

    def _wait_for_engines(self, settings: Settings) -> None:
        reason = ""
        while True:
            try:
                read_roster(settings)
            except StartError as error:  # no node with an engine has come yet
                if str(error) != reason:
                    log.warning("a gateway waits for an engine", reason=str(error))
                reason = str(error)
                time.sleep(POLL_EVERY_S)
            else:
                return


def is_free(address: str, port: int) -> bool:
    """Return whether a server may listen there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as check:
        check.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            check.bind((address, port))
        except OSError:
            return False
    return True


class ServedApp:
    """The app behind Serve: it ends when its calls have ended."""

    def __init__(self, app: FastAPI) -> None:
        self._services: Services = app.state.services
        trusted = trusted_networks(os.environ.get("FORWARDED_ALLOW_IPS", TRUSTED_BY_DEFAULT))
        self._app = ProxyHeadersMiddleware(app, trusted, self._services.settings.public_urls)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection. The app's shutdown waits until its calls have ended."""

        async def receive_drained() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._drain()
            return message

        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]  # Serve adds its own; ours is in request-id, too
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive_drained, send)
        else:
            await self._app(scope, receive, send_one_id)

    async def _drain(self) -> None:
        """Wait for the calls that run without a request; Serve has ended the requests. The app cancels calls that take
        too long."""
        services = self._services
        services.running.drain.draining = True
        until = time.monotonic() + services.settings.drain_s
        while services.running.total and time.monotonic() < until:  # noqa: ASYNC110 - it is looked at seldom
            await asyncio.sleep(POLL_EVERY_S)
