"""Signing in with an account of a provider that others have written, in a real browser."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.test_console import NODE, browser, run_spec
from tests.support.harness import MakeServer, Server, assert_clean, free_port

__all__ = ["browser"]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (NODE / "node_modules" / "oidc-provider").exists(), reason="npm ci in tests/node brings it"),
]


@pytest.fixture
def server(make_server: MakeServer) -> Iterator[Server]:
    """A server whose provider begins after it."""
    port = free_port()
    server = make_server(
        oidc_issuer=f"http://127.0.0.1:{port}",
        oidc_client_id="darkroom",
        oidc_client_secret="a-secret-of-the-test",
        oidc_scopes="openid,profile,groups",
        oidc_groups="design=alpha-image-per-call",
        oidc_operators="ops",
    )
    assert server.darkroom("teams", "create", "design").returncode == 0
    command = ["node", "oidc.mjs", str(port), server.base]
    with subprocess.Popen(command, cwd=NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as provider:
        assert provider.stdout is not None
        while provider.stdout.readline().strip() != "ready":
            assert provider.poll() is None
        yield server
        provider.communicate(timeout=30)  # closes its input


def test_people_sign_in_again_over_the_page_and_out(server: Server, browser: str) -> None:
    run_spec(NODE / "console" / "oidc.mjs", browser, server, server.base)
    assert_clean(server)
