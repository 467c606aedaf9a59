"""An S3 server for tests: moto's, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import obstore
from obstore.store import S3Store

from tests.support.harness import REPOSITORY, free_port, until

BUCKET = "pictures"


@dataclass
class ObjectStore:
    """The server, which a test may stop and start. What was stored is lost when it stops: `cut_off` loses nothing."""

    port: int
    process: subprocess.Popen[bytes] | None = None
    proxy_port: int | None = None  # of a process through which its clients reach it
    proxy: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/of-tests"

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy_port or self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=inherited)
        until(self._has_bucket, interval_s=0.2)

    def connect(self) -> None:
        """Let clients reach it through a process that can be killed."""
        self.proxy_port = self.proxy_port or free_port()
        command = [sys.executable, "-m", "tests.support.idle_proxy", str(self.port), "3600", str(self.proxy_port)]
        self.proxy = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
        assert self.proxy.stdout is not None
        assert self.proxy.stdout.readline()

    def cut_off(self) -> None:
        """SIGKILL for that process: what is being sent is cut, and nothing answers any more."""
        if self.proxy is not None:
            self.proxy.kill()
            self.proxy.communicate(timeout=30)

    def read(self, name: str) -> bytes | None:
        """An image, if it is there."""
        store = S3Store(
            BUCKET,
            prefix="of-tests",
            endpoint=f"http://127.0.0.1:{self.port}",
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        try:
            return bytes(obstore.get(store, f"{name[:2]}/{name}").bytes())
        except FileNotFoundError:
            return None

    def stop(self) -> None:
        self.cut_off()
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)

    def _has_bucket(self) -> bool:
        try:
            return httpx.put(f"http://127.0.0.1:{self.port}/{BUCKET}", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore(free_port())
    try:
        store.start()
        yield store
    finally:
        store.stop()
