"""nginx and Caddy with their files of deploy/, in front of a server: streams, uploads, addresses, operators' routes."""

import contextlib
import io
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.support.harness import REPOSITORY, MakeServer, Server, free_port, suspended, until
from tests.support.nginx import write_config

pytestmark = pytest.mark.nightly

DEPLOY = REPOSITORY / "deploy"
NAME = "pictures.example"
HOST = "127.0.0.2"  # where the UDP port, which Caddy listens to for HTTP/3, is not leased
PATH = "/v1/images/generations"
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs, and the server behind it."""

    port: int
    http_port: int
    server: Server
    certificate: Path

    def client(self, key: str | None = None, address: str = "127.0.0.1") -> httpx.Client:
        """A client from this address that finds the name at this machine."""
        trust = ssl.create_default_context(cafile=str(self.certificate))
        transport = httpx.HTTPTransport(verify=trust, local_address=address)
        headers = {"Host": NAME, "Authorization": f"Bearer {key or self.server.key}"}
        return _Named(base_url=f"https://{HOST}:{self.port}", headers=headers, timeout=280, transport=transport)


class _Named(httpx.Client):
    """Asks for the name in TLS too."""

    def send(self, request: httpx.Request, **options: object) -> httpx.Response:  # type: ignore[override]
        request.extensions["sni_hostname"] = NAME
        return super().send(request, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    return make_tiny(public_urls=f"https://{NAME}", keepalive_s="0.2")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its key beside it."""
    folder = tmp_path_factory.mktemp("certificate")
    names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"))
    make = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", *names, *files)
    subprocess.run(make, check=True, capture_output=True)
    return folder / "certificate.pem"


def nginx(program: str, folder: Path, server: Server, certificate: Path) -> tuple[list[str], int, int]:
    port, http_port = free_port(), free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("listen 443", f"listen {port}"),
        ("listen 80", f"listen {http_port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{server.port}"),
        ("/etc/ssl/pictures.example/fullchain.pem", str(certificate)),
        ("/etc/ssl/pictures.example/privkey.pem", str(certificate.with_name("key.pem"))),
    ):
        assert old in text
        text = text.replace(old, new)
    config = write_config(folder, text)
    return [program, "-p", str(folder), "-e", str(folder / "log"), "-c", str(config)], port, http_port


def caddy(program: str, folder: Path, server: Server, certificate: Path) -> tuple[list[str], int, int]:
    port, http_port = free_port(), free_port()
    text = (DEPLOY / "Caddyfile").read_text()
    tls = f"pictures.example {{\n\ttls {certificate} {certificate.with_name('key.pem')}\n"
    text = re.sub(r"^pictures.example \{\n", tls, text, flags=re.M).replace(
        "127.0.0.1:8080", f"127.0.0.1:{server.port}"
    )
    ports = f"{{\n\tadmin off\n\tdefault_bind {HOST}\n\thttp_port {http_port}\n\thttps_port {port}\n}}\n"
    (folder / "Caddyfile").write_text(ports + text)
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], port, http_port


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server, certificate: Path
) -> Iterator[Proxy]:
    configure: Callable[[str, Path, Server, Path], tuple[list[str], int, int]] = request.param
    program = shutil.which(configure.__name__, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{configure.__name__} is not installed")
    folder = tmp_path_factory.mktemp(configure.__name__)
    command, port, http_port = configure(program, folder, server, certificate)
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    log = folder / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    made = Proxy(port, http_port, server, certificate)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with made.client() as client:
                return client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(answers)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_stream_is_not_buffered(proxy: Proxy) -> None:
    body = {**BODY, "stream": True}
    with proxy.client() as client, contextlib.ExitStack() as worker:
        worker.enter_context(suspended(proxy.server.readiness()["worker_pid"]))
        with client.stream("POST", PATH, json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(":")  # the call waits, and this comment has come
            worker.close()
            assert any("completed" in line for line in lines)


def test_operators_watch_the_queue(proxy: Proxy) -> None:
    with proxy.client(proxy.server.admin_key) as client, client.stream("GET", "/admin/events") as events:
        assert next(line for line in events.iter_lines() if line.startswith("data:"))  # the stream has no end


def test_large_uploads_pass(proxy: Proxy) -> None:
    file = io.BytesIO()
    Image.frombytes("RGB", (2000, 2000), os.urandom(12_000_000)).save(file, "PNG", compress_level=0)
    fields = {"prompt": "a star", "model": BODY["model"], "size": "256x256", "response_format": "url"}
    with proxy.client() as client:
        answer = client.post("/v1/images/edits", data=fields, files={"image": ("a.png", file.getvalue(), "image/png")})
    assert answer.status_code == 200, answer.text


def test_addresses_are_those_of_the_proxy(proxy: Proxy) -> None:
    with proxy.client() as client:
        url = client.post(PATH, json=BODY).raise_for_status().json()["data"][0]["url"]
        assert url.startswith(f"https://{NAME}/cdn/")
        assert client.get(httpx.URL(url).path).headers["content-type"] == "image/png"
        cookie = client.post("/console/session").headers["set-cookie"]
        assert "Secure" in cookie  # by X-Forwarded-Proto
        assert client.get("/console").status_code == 200
    plain = httpx.get(f"http://{HOST}:{proxy.http_port}/x", headers={"Host": NAME}, trust_env=False)
    assert (plain.status_code // 100, plain.headers["location"]) == (3, f"https://{NAME}/x")


def test_operators_routes_are_for_their_networks(proxy: Proxy, request: pytest.FixtureRequest) -> None:
    with proxy.client(proxy.server.admin_key) as inside:
        assert {inside.get(path).status_code for path in ("/metrics", "/admin/status")} == {200}
    if "caddy" in request.node.name:  # which counts all of this machine's addresses among the private ones
        return
    with proxy.client(proxy.server.admin_key, address="127.0.0.2") as outside:
        assert {outside.get(path).status_code for path in ("/metrics", "/admin/status")} == {403}
        assert outside.get("/healthz").status_code == 200
