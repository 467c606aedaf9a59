"""Ray's processes on this machine. Each `darkroom cluster up` or `join` has its own, and ends no others."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from server.backends.cluster.roster import NAMESPACE, SUPERVISOR
from server.cli.cluster.token import read_token, token_file
from server.errors import StartError

START_LIMIT_S = 90.0
STOP_LIMIT_S = 45.0
HEAD_ANSWERS_S = 5  # it listens, as has been tried; a wrong token Ray would try for 20 s
STORE_BYTES = 2**30  # shared memory for images that pass through Ray
RAY_BY_PROXY = "RAY_grpc_enable_http_proxy"  # whether it goes by the proxy of the environment
NO_RAY = "The cluster needs Ray, which is not installed: pip install 'darkroom[cluster]'"


@dataclass(frozen=True, slots=True)
class RayNode:
    """Ray's processes on this machine, by their file in the home. `pid` is of the process that started all others."""

    address: str
    name: str
    pid: int
    is_head: bool

    @property
    def is_running(self) -> bool:
        """Return whether the process that started all others runs, and is no zombie."""
        try:
            os.kill(self.pid, 0)
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (ProcessLookupError, FileNotFoundError):
            return False


def require_ray() -> None:
    """Check that Ray is installed. Raises StartError, in one line."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise StartError(NO_RAY)


def set_environment(home: Path) -> None:
    """Set the variables that Ray reads in this process and in those that it starts. Raises StartError without a
    token."""
    read_token(home)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file(home).resolve())
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ[RAY_BY_PROXY] = "0"  # nodes reach each other directly
    os.environ["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # `drain` and `down` have waited for what runs


def read_node(home: Path) -> RayNode | None:
    """Return the processes that were started here, None if they do not run any more."""
    try:
        node = RayNode(**json.loads(_file(home).read_text()))
    except FileNotFoundError:
        return None
    return node if node.is_running else None


def start_node(
    home: Path, name: str, head: str | None, port: int, ip: str | None, labels: Mapping[str, str]
) -> RayNode:
    """Start Ray here, as the head if `head` (its HOST:PORT) is None. Raises StartError."""
    if (running := read_node(home)) is not None:
        raise StartError(
            f"This node is part of the cluster at {running.address} already: `darkroom cluster down` first."
        )
    if head is not None:
        _require_listener(head)
    options = [f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}", "--num-cpus=0"]
    options += [f"--object-store-memory={STORE_BYTES}", "--block", "--disable-usage-stats"]
    options += [f"--node-ip-address={ip}"] if ip is not None else []
    options += ["--head", f"--port={port}", "--include-dashboard=false"] if head is None else [f"--address={head}"]
    log_path = home / "logs" / "ray.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    patience = {} if head is None else {"RAY_NUM_REDIS_GET_RETRIES": str(HEAD_ANSWERS_S)}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **patience},
        )  # fmt: skip
    deadline = time.monotonic() + START_LIMIT_S
    while "Ray runtime started" not in log_path.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise StartError(_why_not_started(home, log_path))
        time.sleep(0.1)
    address = head or f"{ip or _own_address(log_path)}:{port}"
    node = RayNode(address, name, process.pid, head is None)
    _file(home).write_text(json.dumps(asdict(node)))
    return node


def stop_node(home: Path) -> bool:
    """End the processes that were started here. Returns False if none runs."""
    node = read_node(home)
    if node is None:
        return False
    os.kill(node.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while node.is_running:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(node.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            os.killpg(node.pid, signal.SIGKILL)
        time.sleep(0.1)
    _file(home).unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect this process to the cluster as a client; yields Ray. Raises StartError."""
    import ray

    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:
        raise StartError(f"The cluster at {address} does not answer: {str(error).partition(chr(10))[0]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def find_supervisor(ray: Any) -> Any:
    """Return the cluster's supervisor. Raises StartError where `darkroom cluster up` has not run."""
    try:
        return ray.get_actor(SUPERVISOR, NAMESPACE)
    except ValueError as error:
        raise StartError("This Ray cluster has no Darkroom: run `darkroom cluster up` on its first node.") from error


def _file(home: Path) -> Path:
    return home / "cluster-node.json"


def _why_not_started(home: Path, log_path: Path) -> str:
    said = log_path.read_text(errors="replace").strip()
    if "InvalidAuthToken" in said:
        return (
            f"The cluster has another token than the one in {token_file(home)}: `darkroom cluster token` on the first "
            "node prints the right one."
        )
    return f"Ray did not start here; {log_path} says why: {''.join(said.splitlines()[-1:])}"


def _require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise StartError(f"--head: expected the first node as HOST:PORT, such as 10.0.0.1:6379, got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            pass
    except (OSError, OverflowError) as error:
        raise StartError(f"Nothing answers at {address}, where the first node should: {error}") from error


def _own_address(log_path: Path) -> str:
    """Return this machine's address as Ray has found it."""
    for line in log_path.read_text(errors="replace").splitlines():
        if "Local node IP: " in line:
            return line.rpartition(" ")[2].strip()
    return "127.0.0.1"
