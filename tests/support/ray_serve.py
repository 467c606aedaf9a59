"""A Ray cluster that somebody else runs, for tests: two nodes on this machine without a word of Darkroom's, and Serve.

Serve's packages are not in the set-up: they are installed into an environment of their own, beside those of the tests.
"""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.support.harness import REPOSITORY, START_LIMIT_S, free_port, suspended, until
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.ray_cluster import Books, make_nodes, write_config

FOLDER = REPOSITORY / ".nightly" / "serve"
SECRET = "of this test and of no other cluster"
ENGINE = "ray::EngineActor"


def serve_python() -> Path:
    """The Python of an environment that has what this one has, and Ray Serve."""
    python = FOLDER / "bin" / "python"
    installed = FOLDER / "installed"
    pins = REPOSITORY / "constraints.txt"
    if not installed.exists() or installed.stat().st_mtime < pins.stat().st_mtime:
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        packages = next(FOLDER.glob("lib/python*/site-packages"))
        (packages / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = ["--constraint", str(pins), "--editable", f"{REPOSITORY}[serve]"]
        subprocess.run([*command, *wanted], check=True)
        installed.touch()
    return python


@dataclass
class RayServe(Books):
    """`port` is of Serve's proxy."""

    python: Path
    environment: Mapping[str, str]
    port: int
    config: Path
    nodes: list[subprocess.Popen[bytes]]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, *arguments: str) -> None:
        """`serve ...`"""
        self._run("-m", "ray.serve.scripts", *arguments)

    def python_code(self, code: str) -> None:
        """Run it as a client of the cluster."""
        self._run("-c", code)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.python), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            cwd=REPOSITORY,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def processes(self, title: str) -> list[psutil.Process]:
        """Those whose command begins so: Ray writes there what a process is."""
        found = []
        for node in self.nodes:
            for process in psutil.Process(node.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if "".join(process.cmdline()[:1]).startswith(title):
                        found.append(process)
        return found

    @property
    def replicas(self) -> list[psutil.Process]:
        return self.processes("ray::ServeReplica:default:Gateway")

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """No image worker gets on."""
        children = [child for engine in self.processes(ENGINE) for child in engine.children(recursive=True)]
        with ExitStack() as stack:
            for child in children:
                if "image" in child.cmdline():
                    stack.enter_context(suspended(child.pid))
            yield

    def client(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=280, trust_env=False)


def _node(python: Path, environment: Mapping[str, str], log: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=4", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    until(lambda: process.poll() is not None or "Ray runtime started" in log.read_text(errors="replace"))
    assert process.poll() is None, log.read_text()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def ray_serve(folder: Path) -> Iterator[RayServe]:
    """Nothing of Darkroom runs there yet."""
    python = serve_python()
    with ExitStack() as cleanup:
        store = cleanup.enter_context(object_store())
        url = cleanup.enter_context(Cluster.temporary()).new("template0")
        a, b = make_nodes(folder, store.environment)
        config = write_config(folder / "cluster.toml", url, store.url)
        token = folder / "token"
        token.write_text("0123456789abcdef" * 4)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DARKROOM_", "RAY_"))}
        head, dashboard, clients = (free_port() for _ in range(3))
        shared = {
            **inherited, **store.environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0", "DARKROOM_WEIGHTS": str(a.weights),
            "DARKROOM_MODEL_CONFIGS": str(a.configs), "DARKROOM_DEVICE": "cpu", "DARKROOM_LEASE_S": "10",
            "DARKROOM_CLUSTER_SECRET": SECRET, "DARKROOM_DRAIN_S": "20",
            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}", "RAY_ADDRESS": f"127.0.0.1:{head}",
        }  # fmt: skip
        nodes: list[subprocess.Popen[bytes]] = []
        for node in (a, b):
            own = {**shared, "DARKROOM_HOME": str(node.home)}
            where = ["--head", f"--port={head}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={clients}"]
            if node is b:
                del own["RAY_ADDRESS"]
                where = [f"--address=127.0.0.1:{head}"]
            labels = f"--labels=box={node.name}"
            options = [*where, labels, "--node-ip-address=127.0.0.1", f"--object-store-memory={2**28}"]
            log = folder / f"{node.name}.log"
            nodes.append(_node(python, own, log, *options))
            cleanup.callback(_end, nodes[-1])
        yield RayServe(url, python, {**shared, "DARKROOM_HOME": str(a.home)}, free_port(), config, nodes)
