"""`make prove-offline`: the server draws and chats where there is no network, and tries to reach none.

The Makefile runs it in a network namespace of its own (unshare --net), in which it brings up the loopback alone. There
the kernel counts every packet, connection and look-up for which it finds no route: all that would have left. At the end
one attempt is made on purpose, since a count of nothing shows only something if it counts.
"""

import fcntl
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DARKROOM = Path(sys.executable).with_name("darkroom")
HOST, PORT = "127.0.0.1", 8080
READY_LIMIT_S, CALL_LIMIT_S, STOP_LIMIT_S = 1800.0, 900.0, 180.0
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
ELSEWHERE = ("192.0.2.1", 443)  # an address for documentation, which nobody has
SIGNATURES = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WebP"}


class NotProven(Exception):
    """What is not as it should be."""


@dataclass(frozen=True)
class Attempts:
    """Since the namespace began: what found no route, and datagrams to local ports that nobody has, such as those of a
    resolver on the loopback."""

    without_route: int
    to_closed_ports: int

    @classmethod
    def now(cls) -> "Attempts":
        ip, udp = _snmp("Ip"), _snmp("Udp")
        six = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
        without_route = ip["OutNoRoutes"] + int(six.get("Ip6OutNoRoutes", 0))
        return cls(without_route, udp["NoPorts"] + int(six.get("Udp6NoPorts", 0)))


def _snmp(protocol: str) -> dict[str, int]:
    lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
    names, values = (line[1:] for line in lines if line[0] == f"{protocol}:")
    return dict(zip(names, map(int, values), strict=True))


def isolate() -> None:
    """Bring the loopback up. Raises NotProven if there is any other way out."""
    interfaces = [line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    if interfaces != ["lo"] or routes:
        names = ", ".join(interfaces)
        raise NotProven(f"this is no namespace without a network: it has {names} and {len(routes)} routes")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP | IFF_RUNNING))


def remote_sockets() -> list[str]:
    """Sockets with an end that is not on the loopback, as the kernel writes them."""
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            local, remote = line.split()[1:3]
            if not all(_is_local(end.partition(":")[0]) for end in (local, remote)):
                found.append(f"{protocol} {local} {remote}")
    return found


def _is_local(address: str) -> bool:
    """Of /proc/net: 127.0.0.0/8, ::1, ::ffff:127.0.0.0/104 or unbound; in groups of four bytes, each little-endian."""
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    mapped = len(raw) == 16 and raw[:12] == bytes(10) + b"\xff\xff"
    four = raw[12:] if mapped else raw
    return four in {bytes(len(four)), bytes(15) + b"\1"} or (len(four) == 4 and four[0] == 127)


class Caller:
    """Calls the server with a key, and never through a proxy."""

    def __init__(self, key: str | None = None) -> None:
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def read(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Raises NotProven for another status than 200, and OSError."""
        connection = http.client.HTTPConnection(HOST, PORT, timeout=CALL_LIMIT_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request("GET" if data is None else "POST", path, data, self._headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise NotProven(f"{path} answered {answer.status}: {content.decode(errors='replace')[:500]}")
        return content

    def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.read(path, body))
        return parsed


def wait_ready(server: "subprocess.Popen[bytes]") -> None:
    """Until /readyz says so. Raises NotProven."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise NotProven(f"the server ended with status {server.returncode}; its lines above say why")
        try:
            Caller().read("/readyz")
        except (OSError, NotProven):
            time.sleep(0.2)
        else:
            return
    raise NotProven(f"the server was not ready within {READY_LIMIT_S:.0f} s")


def draw(caller: Caller, models: list[dict[str, Any]]) -> str:
    """Raises NotProven."""
    drawing = [model for model in models if model["type"] == "image" and "text" in model["supports"]]
    if not drawing:
        raise NotProven("the catalog has no model that draws from a prompt")
    model = min(drawing, key=lambda model: (model["tier"], float(model["price"])))["id"]
    answer = caller.request("/v1/images/generations", {"model": model, "prompt": "a red boat at sunset"})
    url = answer["data"][0]["url"]
    data = caller.read(urlsplit(url).path)
    kind = next((name for start, name in SIGNATURES.items() if data.startswith(start)), None)
    if kind is None:
        raise NotProven(f"{url} is no image")
    return f"{model}: {kind}, {len(data):,} bytes, read from {url}"


def chat(caller: Caller, models: list[dict[str, Any]]) -> str:
    local = [model["id"] for model in models if model["type"] == "chat"]
    if not local:
        return "the catalog has no chat model"
    body = {"model": local[0], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    answer = caller.request("/v1/chat/completions", body)
    return f"{local[0]}: {answer['choices'][0]['message']['content']!r}"


def control(before: Attempts) -> None:
    """Try to leave on purpose. Raises NotProven if that is not counted."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        try:
            attempt.connect(ELSEWHERE)
        except OSError:
            if Attempts.now().without_route > before.without_route:
                return
            raise NotProven("the kernel does not count attempts without a route: nothing is shown") from None
    raise NotProven(f"{ELSEWHERE[0]} could be reached: this machine has a network")


def prove(home: Path) -> None:
    """Raises NotProven."""
    isolate()
    print("network     loopback alone, no route")
    before, began = Attempts.now(), time.monotonic()
    environment = os.environ | {"DARKROOM_HOME": str(home), "DARKROOM_HOST": HOST, "DARKROOM_PORT": str(PORT)}
    server = subprocess.Popen([str(DARKROOM), "serve"], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_ready(server)
        print(f"ready       after {time.monotonic() - began:.1f} s")
        caller = Caller((home / "dev-key").read_text().strip())
        models = caller.request("/v1/models")["data"]
        print(f"image     {draw(caller, models)}; {time.monotonic() - began:.1f} s after the start")
        print(f"chat        {chat(caller, models)}")
        if remote := remote_sockets():
            raise NotProven(f"sockets that are not on the loopback: {remote}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(STOP_LIMIT_S)
    after = Attempts.now()
    if after != before:
        raise NotProven(f"something tried to leave: {before} became {after}")
    control(after)
    print("attempts    to leave: none. One on purpose was counted")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="darkroom-") as home:
        try:
            prove(Path(home))
        except NotProven as error:
            print(f"NOT PROVEN: {error}", file=sys.stderr)
            return 1
    print("PROVEN: Darkroom started, drew and chatted, and nothing tried to leave this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
