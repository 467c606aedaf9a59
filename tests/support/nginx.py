"""nginx in front of a server, which finds it below a path."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.harness import Server, free_port, until

PROGRAM = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIG = """
daemon off;
master_process off;  # a worker of root's would be another user, who may not write into the folder
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
SITE = """
client_max_body_size 100m;
server {{
    listen 127.0.0.1:{port};
    location {path}/ {{
        proxy_pass http://127.0.0.1:{server}{kept};
        proxy_http_version 1.1;
        proxy_buffering off;
        proxy_read_timeout 900s;
        {lines}
    }}
}}
"""


def write_config(folder: Path, site: str) -> Path:
    """The file of an nginx that keeps all its files in the folder and serves this site."""
    (folder / "site.conf").write_text(site)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder))
    return config


@contextlib.contextmanager
def below(
    server: Server, folder: Path, path: str, *lines: str, port: int | None = None, keeps_path: bool = False
) -> Iterator[str]:
    """The URL of the server below this path. `lines` are more lines for the location."""
    assert PROGRAM is not None
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    kept = "" if keeps_path else "/"
    config = write_config(
        folder, SITE.format(port=port, path=path, server=server.port, kept=kept, lines="\n".join(lines))
    )
    base = f"http://127.0.0.1:{port}{path}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{base}/healthz", trust_env=False).status_code == 200
        return False

    with subprocess.Popen([PROGRAM, "-p", str(folder), "-e", str(folder / "log"), "-c", str(config)]) as process:
        try:
            until(answers)
            yield base
        finally:
            process.terminate()
