"""Signing in to the console with an account of the organisation: who the person is, what they may do, and their key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from server.accounts.db import Database
from server.accounts.keys import Key, KeyChanges, key_of_person
from server.accounts.teams import team_names
from server.backends.oidc import Attempt, Client, OidcProvider, SignInFailed
from server.errors import StartError
from server.secret_files import read_secret
from server.settings import Settings
from server.state.served import ServedCatalog

NAMES = ("preferred_username", "email", "name", "sub")  # of claims: the first that is there names the key
EVERYBODY = EVERY_GROUP = "*"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who has signed in: by their key, and as an operator too if they may be one."""

    key: Key
    operator: bool


@dataclass(frozen=True, slots=True)
class Access:
    """What the groups of an identity provider grant. `models`: pairs of a provider's group and a group of the catalog,
    with * for everybody and for every model; none: everybody has every model. `operators`: the provider's groups of
    operators."""

    claim: str
    models: tuple[tuple[str, str], ...]
    operators: frozenset[str]

    def provider_groups(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """Return the person's groups at the identity provider, by the ID token's claims. The claim may be inside
        others: `realm_access.roles`."""
        found: Any = claims.get(self.claim)
        if found is None:
            found = claims
            for name in self.claim.split("."):
                found = found.get(name) if isinstance(found, dict) else None
        groups = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        return frozenset(group for group in groups if isinstance(group, str))

    def allowed(self, provider_groups: frozenset[str], catalog: frozenset[str]) -> frozenset[str]:
        """Return the groups of the catalog that a person may use."""
        pairs = self.models or ((EVERYBODY, EVERY_GROUP),)
        given = {models for group, models in pairs if group == EVERYBODY or group in provider_groups}
        return catalog if EVERY_GROUP in given else catalog & given


class SignIn:
    """Signs people in by the organisation's identity provider (OpenID Connect)."""

    def __init__(self, provider: OidcProvider, access: Access, database: Database, catalog: ServedCatalog) -> None:
        self.provider = provider
        self._access = access
        self._database = database
        self._catalog = catalog

    async def finish(self, answer: Mapping[str, str], attempt: Attempt, redirect_uri: str) -> SignedIn:
        """Return who has signed in, by the query of the provider's answer. Raises SignInFailed."""
        claims = await self.provider.claims(answer, attempt, redirect_uri)
        return await self._database.in_writer(self._signed_in, claims)

    def _signed_in(self, claims: Mapping[str, Any]) -> SignedIn:
        theirs = self._access.provider_groups(claims)
        operator = not theirs.isdisjoint(self._access.operators)
        groups = self._access.allowed(theirs, frozenset(self._catalog.current.groups))
        if not groups and not operator:
            raise SignInFailed("no_group", f"{claims['sub']} has the groups {', '.join(sorted(theirs)) or '(none)'}.")
        changes: KeyChanges = {"groups": groups} if self._access.models else {}
        teams = sorted((name, team_id) for team_id, name in team_names(self._database).items() if name in theirs)
        if teams:
            changes["team_id"] = teams[0][1]
        names = (claims.get(name) for name in NAMES)
        name = next(text for text in names if isinstance(text, str) and text.strip())
        key = key_of_person(self._database, f"{claims['sub']} at {claims['iss']}", name[:200], groups, changes)
        if key is None:
            raise SignInFailed("ended", f"The key of {claims['sub']} is revoked or has expired.")
        return SignedIn(key, operator)


def build_sign_in(
    settings: Settings, http: httpx.AsyncClient, database: Database, catalog: ServedCatalog
) -> SignIn | None:
    """Build what signs people in; None without a provider. `http` has the connections. Raises StartError."""
    if settings.oidc_issuer is None:
        return None
    if not settings.oidc_client_id:
        raise StartError("DARKROOM_OIDC_ISSUER needs DARKROOM_OIDC_CLIENT_ID, the name of this server at the provider.")
    client = Client(settings.oidc_issuer, settings.oidc_client_id, _client_secret(settings), settings.oidc_scopes)
    pairs = [pair.rpartition("=") for pair in settings.oidc_groups]
    models = tuple((house, group) for house, _, group in pairs)
    known = {*catalog.current.groups, EVERY_GROUP}
    if unknown := sorted({group for _, group in models} - known):
        raise StartError(
            f"DARKROOM_OIDC_GROUPS names {', '.join(unknown)}; the catalog has {', '.join(sorted(known))}."
        )
    access = Access(settings.oidc_groups_claim, models, frozenset(settings.oidc_operators))
    return SignIn(OidcProvider(client, http), access, database, catalog)


def _client_secret(settings: Settings) -> str | None:
    if settings.oidc_client_secret is not None:
        return settings.oidc_client_secret.get_secret_value()
    if settings.oidc_client_secret_file is None:
        return None
    try:
        return read_secret(settings.oidc_client_secret_file)
    except OSError as error:
        raise StartError(f"DARKROOM_OIDC_CLIENT_SECRET_FILE can't be read: {error}") from error
