"""An S3 server for tests: moto's, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tests.support.harness import free_port, until

BUCKET = "pictures"


@dataclass
class ObjectStore:
    """The server, which a test may stop and start. What was stored is lost when it stops."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/of-tests"

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=inherited)
        until(self._has_bucket, interval_s=0.2)

    def stop(self) -> None:
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
