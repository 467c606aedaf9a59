"""Fetching of URLs: what is refused, and that the connection goes to the checked address."""

import asyncio
import ipaddress
import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from server.backends.fetch import FetchFailed, FetchRefused, FetchRules, FetchTooLarge, fetch_image, resolve_host
from server.backends.public_addresses import SPECIAL, is_public

REFUSED_URLS = [
    "http://example.com/a.png", "ftp://example.com/a", "file:///etc/passwd", "gopher://x", "//example.com/a", "",
    "https://", "https://user:pw@example.com/", "https://example.com:22/", "https://[::1", "https://example.com/\n",
    "https://example.com/" + "a" * 5000, "https://bücher.example/",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1",
    "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "64:ff9b::7f00:1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "fec0::1", "3fff::1", "192.0.0.8", "192.0.0.192",
    "192.88.99.1", "168.63.129.16", "::7f00:1",
]  # fmt: skip


async def fetch_with(url: str, addresses: list[str] | None = None, **options: object) -> bytes:
    async def resolve(host: str, port: int) -> list[str]:
        return addresses or ["203.0.113.1"]

    settings = {"allow": True, "max_bytes": 1000, "timeout_s": 60.0, "resolve": resolve, **options}
    return await fetch_image(url, FetchRules(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_urls_that_are_not_plain_https_are_refused(url: str) -> None:
    with pytest.raises(FetchRefused):
        await fetch_with(url)


@pytest.mark.parametrize("address", PRIVATE)
async def test_hosts_off_the_public_internet_are_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(FetchRefused, match="public internet"):
        await fetch_with("https://example.com/a.png", [address])
    with pytest.raises(FetchRefused, match="public internet"):
        await fetch_with("https://example.com/a.png", ["93.184.215.14", address])


@pytest.mark.parametrize("block", SPECIAL, ids=str)
async def test_no_address_of_a_special_block_is_dialled(
    block: ipaddress.IPv4Network | ipaddress.IPv6Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address, the last and one between, and each inside an IPv6 address that carries an IPv4 one."""

    async def connect(*arguments: object, **options: object) -> None:
        raise AssertionError(f"dialled {arguments} {options}")

    monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", connect)
    first, last = int(block[0]), int(block[-1])
    for number in {first, (first + last) // 2, last}:
        address = type(block[0])(number)
        carriers = [str(address)]
        if isinstance(address, ipaddress.IPv4Address):
            carriers += [
                f"::ffff:{address}",
                f"64:ff9b::{address}",
                str(ipaddress.IPv6Address(0x2002 << 112 | number << 80)),
            ]
        for carrier in carriers:
            with pytest.raises(FetchRefused, match="public internet"):
                await fetch_with("https://example.com/a.png", [carrier])


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


async def test_nothing_is_resolved_while_fetching_is_off() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise AssertionError("resolved")

    with pytest.raises(FetchRefused, match="DARKROOM_FETCH"):
        await fetch_with("https://example.com/a.png", allow=False, resolve=resolve)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
        elif self.path == "/private":
            self.send_response(302)
            self.send_header("Location", "https://private.test/secret")
            self.end_headers()
        elif self.path == "/nowhere":
            self.send_response(302)
            self.send_header("Location", "https://[x")
            self.end_headers()
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)
        elif self.path == "/missing":
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"hello {self.headers['Host']}".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[int, str]]:
    openssl = shutil.which("openssl")
    assert openssl, "these tests need the openssl command"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-keyout", key,
         "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, str(certificate)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    with tls_server(tmp_path_factory.mktemp("tls")) as running:
        yield running


async def over_tls(tls: tuple[int, str], path: str, **options: object) -> bytes:
    """Fetch from the local server under the name images.test, with loopback and its port allowed."""
    port, certificate = tls
    allowed = {"is_allowed": lambda address: str(address) == "127.0.0.1", "ports": (port,), "ca_file": certificate}
    return await fetch_with(f"https://pictures.test:{port}{path}", ["127.0.0.1"], **{**allowed, **options})


async def test_a_public_image_is_fetched_with_its_own_host_name(tls: tuple[int, str]) -> None:
    assert (await over_tls(tls, "/a.png")).startswith(b"hello pictures.test")


@contextmanager
def tunnel(target: int) -> Iterator[tuple[str, list[str]]]:
    """The URL of a proxy whose tunnels all lead to a port of this machine, and what it was asked."""
    asked: list[str] = []

    class Tunnel(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Proxy-Authorization')}")
            with socket.create_connection(("127.0.0.1", target)) as there:
                self.send_response(200)
                self.end_headers()
                ends = {self.connection: there, there: self.connection}
                while ends and (ready := select.select(list(ends), [], [], 60)[0]):
                    for end in ready:
                        if not (content := end.recv(65536)):
                            ends = {}
                            break
                        ends[end].sendall(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Tunnel) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://me:p%40ss@127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


async def test_a_proxy_is_told_the_checked_address_and_sees_nothing(tls: tuple[int, str]) -> None:
    port, certificate = tls
    options = {"ca_file": certificate, "ports": (port,)}
    with tunnel(port) as (proxy, asked):
        for addresses in (["93.184.215.14"], ["2606:2800:21f::1"]):
            url = f"https://pictures.test:{port}/a.png"
            assert (await fetch_with(url, addresses, proxy=proxy, **options)).startswith(b"hello pictures.test")
        with pytest.raises(FetchRefused, match="public internet"):  # nor by the proxy
            await fetch_with(url, ["10.0.0.1"], proxy=proxy, **options)
    who = "Basic bWU6cEBzcw=="
    assert asked == [f"93.184.215.14:{port} {who}", f"[2606:2800:21f::1]:{port} {who}"]


async def test_a_certificate_for_another_name_is_refused(tls: tuple[int, str]) -> None:
    with pytest.raises(FetchFailed):
        await over_tls(tls, "/a.png", ca_file=None)


async def test_a_name_is_resolved_once_a_hop(tls: tuple[int, str]) -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    assert await over_tls(tls, "/a.png", resolve=resolve)
    assert answers == [["10.0.0.1"]]


async def test_a_redirect_to_a_private_host_is_refused(tls: tuple[int, str]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"] if host == "private.test" else ["127.0.0.1"]

    with pytest.raises(FetchRefused, match="public internet"):
        await over_tls(tls, "/private", resolve=resolve, ports=(tls[0], 443))


async def test_loops_large_bodies_errors_and_timeouts_end_the_fetch(tls: tuple[int, str]) -> None:
    for path, reason in (("/loop", "redirects"), ("/nowhere", "redirects to nowhere"), ("/missing", "404")):
        with pytest.raises(FetchFailed, match=reason):
            await over_tls(tls, path)
    with pytest.raises(FetchTooLarge, match="larger than"):
        await over_tls(tls, "/large")

    async def slow(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    with pytest.raises(FetchFailed, match="did not answer"):
        await over_tls(tls, "/a.png", resolve=slow, timeout_s=0.1)


async def test_a_dns_server_that_does_not_answer_blocks_no_thread_of_the_default_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = Event()

    def hang(*_: object, **__: object) -> list[object]:
        answered.wait(60)
        return []

    monkeypatch.setattr("socket.getaddrinfo", hang)
    with ThreadPoolExecutor(1) as default_executor:
        asyncio.get_running_loop().set_default_executor(default_executor)
        lookup = asyncio.create_task(resolve_host("pictures.test", 443))
        await asyncio.sleep(0)  # it is handed to its thread
        assert await asyncio.wait_for(asyncio.to_thread(len, "abc"), 50) == 3
        answered.set()
        assert await lookup == []


def test_the_defaults_are_strict() -> None:
    rules = FetchRules(allow=True, max_bytes=1, timeout_s=1)
    assert rules.is_allowed is is_public
    assert rules.ports == (443,)
    assert rules.ca_file is None
