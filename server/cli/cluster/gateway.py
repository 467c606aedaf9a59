"""A server of the cluster as a Ray actor: the server of `darkroom serve`, in a thread of the actor."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import ray

from server.cli.cluster.config import ClusterConfig
from server.cli.cluster.token import ClusterSecrets
from server.cli.serve import prepare_server
from server.secret_files import write_secret
from server.settings import Settings

OPTIONS: dict[str, Any] = {
    "lifetime": "detached",
    "max_restarts": 0,  # as engines
    "max_task_retries": 0,
    "max_concurrency": 8,
    "num_cpus": 0,
}


class Gateway:
    """A gateway as a Ray actor. Its settings are those of its node's environment and of cluster.toml. It ends when its
    server has ended."""

    def __init__(self, name: str, index: int, config: ClusterConfig, secrets: ClusterSecrets) -> None:
        os.umask(0o077)
        address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray has no types for it
        own, cluster = Settings().home, ray.get_runtime_context().gcs_address
        settings = gateway_settings(own / name, address, index, config, secrets, cluster)
        prepare_home(settings, secrets)
        reached = address if config.host in {"0.0.0.0", "::"} else config.host  # noqa: S104
        self._url = f"http://{reached}:{settings.port}"
        self._server = prepare_server(settings)
        threading.Thread(target=self._serve, name="server", daemon=True).start()

    def state(self) -> dict[str, Any]:
        """Describe the gateway for `darkroom cluster status`."""
        services = self._server.services
        return {
            "url": self._url,
            "ready": self._server.started and services.engines.image.ready,
            "leaving": services.running.drain.draining,
            "calls": services.running.total,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }

    def stop(self) -> None:
        """Stop as at a SIGTERM: the gateway ends when its calls have ended."""
        self._server.handle_exit(signal.SIGTERM, None)

    def _serve(self) -> None:
        try:
            self._server.run()
        finally:
            os._exit(0)


def prepare_home(settings: Settings, secrets: ClusterSecrets) -> None:
    """Create the home of a gateway within its node's: with the node's sums of weights, and the cluster's admin key."""
    settings.home.mkdir(parents=True, exist_ok=True)
    known = Settings().weight_digests
    if known.exists() and not settings.weight_digests.exists():
        shutil.copy(known, settings.weight_digests)  # what the node has read need not be read again
    settings.admin_key.unlink(missing_ok=True)
    write_secret(settings.admin_key, secrets.admin)


def gateway_settings(
    home: Path, address: str, index: int, config: ClusterConfig, secrets: ClusterSecrets, cluster: str | None = None
) -> Settings:
    """Return the settings of one gateway: those that are its own, and all others from the environment."""
    given: dict[str, Any] = {
        "home": home,
        "host": config.host,
        "port": config.port + index,
        "database": config.database,
        "storage": config.storage,
        "gateway_url": f"http://{address}:{config.private_port + index}",
        "cluster_secret": secrets.gateway,
        "cluster": cluster,
    }
    return Settings(**given)
