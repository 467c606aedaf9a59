"""What a node that runs an engine must have in common with the servers that use it, beside the catalog's weights."""

import hashlib
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version

from server.errors import StartError
from server.settings import Settings

WORDS = {
    "darkroom": "Darkroom", "ray": "Ray", "python": "Python", "weights": "DARKROOM_WEIGHTS",
    "moderation": "the moderation policy (by hash)", "engines": "cluster.toml (by hash)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeProperties:
    """One machine: its versions, its folder of weights, the hashes of its policy and of the file that made its
    engines."""

    darkroom: str
    ray: str
    python: str
    weights: str
    moderation: str
    engines: str

    def differences(self, other: "NodeProperties") -> list[str]:
        """Describe the differences in words, this node's against the other's."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{WORDS[name]}: {mine[name]} here, {theirs[name]} there" for name in mine if mine[name] != theirs[name]
        ]


def describe_node(settings: Settings, engines: str) -> NodeProperties:
    """Describe this machine, to be compared with others. Raises StartError for a policy that can't be read."""
    policy = b""
    try:
        if settings.moderation is not None:
            policy = settings.moderation.read_bytes()
    except OSError as error:
        raise StartError(f"DARKROOM_MODERATION: {error}") from error
    return NodeProperties(
        darkroom=version("darkroom"),
        ray=version("ray"),
        python=platform.python_version(),
        weights=str(settings.weights.resolve()),
        moderation=hashlib.sha256(policy).hexdigest()[:16] if settings.moderation is not None else "none",
        engines=engines,
    )
