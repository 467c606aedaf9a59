"""Signing in to the console with accounts of a provider: its protocol, the person's key, and every way to fail."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio

from server.accounts.keys import revoke_key
from server.accounts.teams import create_team
from server.backends import oidc
from server.errors import StartError
from server.flows.operators.sign_in import Access, build_sign_in
from server.http.public_address import TRUSTED_BY_DEFAULT, ProxyHeadersMiddleware, trusted_networks
from server.settings import Settings
from tests.support.in_process import InProcess, in_process

pytest.importorskip("authlib", reason="`make setup` installs what people sign in with")

from tests.support.oidc_provider import CLIENT, SECRET, Provider, new_key, oidc_provider

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUPS = "design=alpha-image-per-call,design=chat,x=y=chat"
BASE = "http://127.0.0.1"


@dataclass
class House:
    """A server whose people sign in at a provider."""

    server: InProcess
    provider: Provider

    @contextlib.asynccontextmanager
    async def browser(self, base: str = BASE) -> AsyncIterator[httpx.AsyncClient]:
        known = self.server.services.settings.public_urls
        app = ProxyHeadersMiddleware(self.server.app, trusted_networks(TRUSTED_BY_DEFAULT), known)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base) as browser:
            yield browser

    async def sign_in(self, browser: httpx.AsyncClient, to: str = "gallery") -> str:
        """Go to the provider and back, as a browser does; return where it ends, from the callback's page."""
        there = await browser.get("/console/oidc/login", params={"to": to})
        if not there.headers["location"].startswith(self.provider.url):
            return there.headers["location"]
        async with httpx.AsyncClient() as other:
            back = await other.get(there.headers["location"])
        arrived = await browser.get(back.headers["location"])
        assert arrived.status_code == 303, arrived.text
        return arrived.headers["location"]

    async def who(self, browser: httpx.AsyncClient) -> dict[str, Any]:
        found: dict[str, Any] = (await browser.get("/console/session")).json()
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    (home / "client-secret").write_text(f"{SECRET}\n")
    async with oidc_provider() as provider:
        settings = {
            "oidc_issuer": f"{provider.url}/",
            "oidc_client_id": CLIENT,
            "oidc_client_secret_file": home / "client-secret",
            "oidc_groups": GROUPS,
            "oidc_operators": "ops",
            "oidc_groups_claim": "roles",
        }
        async with in_process(home, **settings) as server:
            yield House(server, provider)


@pytest.fixture(autouse=True)
def as_ever(house: House) -> None:
    """The provider errs in one test alone."""
    fresh = Provider(house.provider.port)
    for name in ("person", "skew_s", "changes", "denies", "userinfo", "asked"):
        setattr(house.provider, name, getattr(fresh, name))


async def test_a_person_has_a_key_of_their_own_which_follows_the_house(house: House) -> None:
    database = house.server.services.stores.database
    await database.in_writer(create_team, database, "design", 5000, by="test")
    house.provider.person = {"sub": "anna-1", "preferred_username": "anna", "roles": ["design", "staff"]}
    async with house.browser() as browser:
        assert await house.sign_in(browser) == "../gallery"
        found = await house.who(browser)
        assert (found["key"]["name"], found["key"]["person"], found["operator"]) == ("anna", True, False)
        assert found["provider"] == "127.0.0.1"
        me = (await browser.get("/v1/darkroom/me")).json()
        assert (me["groups"], me["team"], me["available"]) == (["alpha-image-per-call", "chat"], "design", "0.50")
        assert (await browser.get("/admin/keys")).status_code == 401
        house.provider.person |= {"preferred_username": "anna b", "roles": ["x", "x=y", "ops"]}
        assert await house.sign_in(browser, "https://elsewhere.example/") == "../"
        again = await house.who(browser)
        assert (again["key"]["id"], again["key"]["name"], again["operator"]) == (found["key"]["id"], "anna", True)
        assert (await browser.get("/v1/darkroom/me")).json()["groups"] == ["chat"]
        (listed,) = [each for each in (await browser.get("/admin/keys")).json()["data"] if each["name"] == "anna"]
        assert listed["person"] == f"anna-1 at {house.provider.url}"
        made = await browser.post("/admin/teams", json={"name": "x"}, headers={"origin": BASE})
        assert made.status_code == 200, made.text
        audit = (await browser.get("/admin/audit?action=team.create&operator=person:anna")).json()["data"]
        assert [each["details"]["name"] for each in audit] == ["x"]
        house.provider.person["roles"] = ["design"]  # no operator any more
        await house.sign_in(browser)
        assert (await house.who(browser))["operator"] is False
        assert (await browser.get("/admin/keys")).status_code == 401
        await database.in_writer(revoke_key, database, found["key"]["id"], by="test")
        assert (await house.who(browser))["key"] is None
        assert await house.sign_in(browser) == "../gallery?sign-in=ended"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"nonce": "of another attempt"}, "invalid"),
        ({"aud": "another program"}, "invalid"),
        ({"aud": [CLIENT, "another program"]}, "invalid"),  # without azp
        ({"iss": "https://elsewhere.example"}, "invalid"),
        ({"sub": ""}, "invalid"),
        ({"exp": 1}, "invalid"),
        ({"iat": 2**33}, "invalid"),
        ({"roles": ["strangers"]}, "no_group"),
        ({"roles": None}, "no_group"),
    ],
)
async def test_a_token_that_is_not_for_this_attempt_signs_nobody_in(
    house: House, wrong: dict[str, Any], reason: str
) -> None:
    house.provider.changes = {"roles": ["design"], **wrong}
    async with house.browser() as browser:
        assert await house.sign_in(browser) == f"../gallery?sign-in={reason}"
        assert (await house.who(browser))["key"] is None


async def test_what_the_provider_or_a_stranger_does_otherwise(house: House) -> None:
    provider = house.provider
    provider.person = {"sub": "ben", "roles": ["design"]}
    async with house.browser() as browser:
        await house.sign_in(browser)  # the provider's description is read at the latest now
        provider.asked.clear()
        for skew_s in (-90, 90):  # clocks that differ a little
            provider.skew_s = skew_s
            provider.changes = {"exp": 10 + skew_s + int(time.time())}
            assert await house.sign_in(browser) == "../gallery"
        provider.skew_s, provider.changes = 0, {}
        provider.key = new_key("second")  # it has changed its key
        assert await house.sign_in(browser) == "../gallery"
        provider.key = new_key("second")  # again, by the same name
        assert await house.sign_in(browser) == "../gallery"
        assert provider.asked.count("description") == 0  # it is kept
        provider.denies = True
        assert await house.sign_in(browser) == "../gallery?sign-in=refused"
        provider.denies = False
        there = urlsplit((await browser.get("/console/oidc/login")).headers["location"])
        state = parse_qs(there.query)["state"][0]
        for cookie in ("", "darkroom-attempt=.gallery", "darkroom-attempt=another.gallery"):
            async with house.browser() as other:  # a link that somebody else has made
                answer = await other.get(f"/console/oidc/callback?code=c&state={state}", headers={"cookie": cookie})
                assert "sign-in=late" in answer.headers["location"]
        answer = await browser.get(f"/console/oidc/callback?code=c&state={state}")
        assert answer.headers["location"] == "../?sign-in=refused"  # a code that was never given
        logout = await browser.get("/console/oidc/logout")
        assert logout.headers["location"].startswith(
            f"{provider.url}/logout?client_id={CLIENT}&post_logout_redirect_uri="
        )


async def test_groups_may_be_told_by_the_userinfo_endpoint_alone(house: House) -> None:
    house.provider.person = {"sub": "cleo"}
    async with house.browser() as browser:
        assert await house.sign_in(browser) == "../gallery?sign-in=no_group"
        house.provider.userinfo = {"roles": "design", "email": "cleo@example.com"}
        provider = house.server.services.sign_in
        assert provider is not None
        provider.provider._read_at = -oidc.KEPT_S  # it is described again
        assert await house.sign_in(browser) == "../gallery"
        assert (await house.who(browser))["key"]["name"] == "cleo@example.com"
        house.provider.userinfo["sub"] = "somebody else"
        assert await house.sign_in(browser) == "../gallery?sign-in=invalid"
        provider.provider._read_at = -oidc.KEPT_S


@pytest.mark.parametrize(
    ("public_urls", "asked", "headers", "expected"),
    [
        ("https://pictures.example/lab", "http://10.0.0.5:8080", {}, "https://pictures.example/lab"),
        (
            "",
            BASE,
            {"x-forwarded-host": "lab.example", "x-forwarded-proto": "https", "x-forwarded-prefix": "/d"},
            "https://lab.example/d",
        ),
        ("", "http://localhost:8080", {"host": "evil.example"}, "http://test"),
    ],
    ids=["named", "forwarded", "another host"],
)
async def test_the_browser_comes_back_to_the_address_that_it_knows(
    tmp_path: Path, public_urls: str, asked: str, headers: dict[str, str], expected: str
) -> None:
    async with oidc_provider() as provider:
        settings = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT, "public_urls": public_urls}
        async with in_process(tmp_path, **settings) as server:
            house = House(server, provider)
            async with house.browser(asked) as browser:
                there = await browser.get("/console/oidc/login", headers=headers)
    sent = parse_qs(urlsplit(there.headers["location"]).query)
    if "host" not in headers:
        assert sent["redirect_uri"] == [f"{expected}/console/oidc/callback"]
        assert ("Secure" in there.headers["set-cookie"]) == bool(headers)
    else:
        assert "evil.example" not in sent["redirect_uri"][0]
    assert sent["scope"] == ["openid profile email"]


async def test_without_an_answer_of_the_provider_keys_still_work(tmp_path: Path) -> None:
    async with oidc_provider() as provider:
        pass  # it has ended
    (tmp_path / "admin-key").write_text("admin")
    settings = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT}
    async with in_process(tmp_path, **settings) as server:
        async with House(server, provider).browser() as browser:
            answers = await asyncio.gather(*(browser.get("/console/oidc/login?to=chat") for _ in range(3)))
            assert {answer.headers["location"] for answer in answers} == {"../chat?sign-in=unreachable"}
            assert (await browser.get("/console/oidc/logout")).headers["location"] == "../"
        assert (await server.client.get("/v1/models")).status_code == 200
        assert (await server.client.post("/console/session")).status_code == 204


async def test_it_is_off_by_default_and_refuses_settings_that_can_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin-key").write_text("admin")
    async with in_process(tmp_path) as server:
        assert (await server.client.get("/console/oidc/login")).status_code == 404
        assert "provider" not in (await server.client.get("/console/session")).json()
        stores, catalog = server.services.stores, server.services.served.catalog
        for more, named in (
            ({}, "CLIENT_ID"),
            ({"oidc_client_id": "d", "oidc_groups": "a=nothing"}, "nothing"),
            ({"oidc_client_id": "d", "oidc_client_secret_file": tmp_path / "none"}, "SECRET_FILE"),
        ):
            settings = Settings(home=tmp_path, oidc_issuer="https://login.example", **more)  # type: ignore[arg-type]
            with pytest.raises(StartError, match=named):
                build_sign_in(settings, None, stores.database, catalog)


async def test_groups_inside_other_claims_are_found() -> None:
    access = Access("realm_access.roles", (("*", "chat"), ("a", "*")), frozenset())
    assert access.provider_groups({"realm_access": {"roles": ["a", 5]}}) == {"a"}
    assert access.provider_groups({"realm_access.roles": "b"}) == {"b"}
    assert access.provider_groups({"realm_access": []}) == frozenset()
    catalog = frozenset({"chat", "images"})
    assert access.allowed(frozenset(), catalog) == {"chat"}
    assert access.allowed(frozenset({"a"}), catalog) == catalog
