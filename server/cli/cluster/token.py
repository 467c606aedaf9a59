"""The secret of a cluster: who has it may run code on every node. Ray asks for it at each connection."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from server.errors import StartError
from server.secret_files import read_secret, write_secret

MIN_LENGTH = 32


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """The secrets that all gateways have in common, derived from the token: none need be copied."""

    gateway: str  # by which gateways know each other's requests
    admin: str


def token_file(home: Path) -> Path:
    """Return the path of the token's file."""
    return home / "cluster-token"


def make_token(home: Path) -> Path:
    """Return the file with the token, which is made if it is not there. Raises StartError."""
    path = token_file(home)
    home.mkdir(parents=True, exist_ok=True)
    try:
        write_secret(path, secrets.token_hex(32))
    except FileExistsError:
        read_token(home)
    return path


def read_token(home: Path) -> str:
    """Read the cluster's token. Raises StartError without a token, or with one that is too short or readable by
    others."""
    path = token_file(home)
    try:
        token = read_secret(path)
        mode = path.stat().st_mode
    except OSError as error:
        raise StartError(
            f"There is no cluster token at {path}. `darkroom cluster token` on the first node prints it: copy it there."
        ) from error
    if len(token) < MIN_LENGTH:
        raise StartError(f"The cluster token in {path} is too short: expected {MIN_LENGTH} characters or more.")
    if mode & 0o077:
        raise StartError(f"Others may read the cluster token: chmod 600 {path}")
    return token


def derive_secrets(token: str) -> ClusterSecrets:
    """Derive the cluster's secrets from its token: that of its gateways, and its admin key."""
    return ClusterSecrets(derive(token, "gateways"), f"admin-{derive(token, 'admin')}")


def derive(secret: str, purpose: str) -> str:
    """Derive a secret for one purpose, which tells nothing of those for others. Hexadecimal, of 256 bits."""
    return hmac.digest(secret.encode(), f"darkroom {purpose}".encode(), hashlib.sha256).hex()
