"""The URLs of results begin with the server's own address, whatever a request claims."""

import pytest
from starlette.requests import Request

from server.http.public_address import own_address

PUBLIC = ("https://pictures.example/darkroom/", "http://gpubox:8080")


def request(host: str | None, server: tuple[str, int] = ("192.0.2.7", 8080), scheme: str = "http") -> Request:
    headers = [] if host is None else [(b"host", host.encode("latin-1"))]
    return Request({"type": "http", "scheme": scheme, "server": server, "path": "/", "headers": headers})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "[::1]x", "", None, "::1"])
def test_a_strangers_host_is_not_repeated(host: str | None) -> None:
    assert own_address(request(host), ()) == "http://192.0.2.7:8080"
    assert own_address(request(host), PUBLIC) == "https://pictures.example/darkroom"


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_this_machines_own_names_are_repeated_with_their_ports(host: str) -> None:
    assert own_address(request(host), ()) == f"http://{host.lower()}"
    assert own_address(request(host), PUBLIC) == "https://pictures.example/darkroom"  # of a proxy without Host


def test_a_public_host_gives_the_url_that_the_operator_wrote() -> None:
    assert own_address(request("GPUBOX:8080"), PUBLIC) == "http://gpubox:8080"
    assert own_address(request("pictures.example"), PUBLIC) == "https://pictures.example/darkroom"


def test_an_address_of_version_6_has_brackets() -> None:
    assert own_address(request("x", ("2001:db8::1", 80), "https"), ()) == "https://[2001:db8::1]:80"
