"""A proxy that keeps what a client sends, and what the server answers."""

import http.client
import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.local_http import QuietHandler, running

HOP = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer. `ignored` are the names in x-darkroom-ignored."""

    path: str
    body: Any
    status: int
    ignored: str
    answer: str


class _Proxy(QuietHandler):
    target: int  # the server's port
    seen: list[Exchange]

    def _pass(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        onward = http.client.HTTPConnection("127.0.0.1", self.target, timeout=600)
        onward.request(self.command, self.path, sent, headers)
        answer = onward.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        text = b""
        while piece := answer.read1(65536):
            text += piece
            self.wfile.write(piece)
        onward.close()
        if sent:
            ignored = answer.getheader("x-darkroom-ignored") or ""
            exchange = Exchange(self.path, json.loads(sent), answer.status, ignored, text.decode(errors="replace"))
            self.seen.append(exchange)

    do_GET = do_POST = do_HEAD = do_DELETE = _pass


@contextmanager
def recording_proxy(port: int) -> Iterator[tuple[str, list[Exchange]]]:
    """Run the proxy before a server on this port until the block ends: its address, and what passed."""
    handler = type("Proxy", (_Proxy,), {"target": port, "seen": []})
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", handler.seen
