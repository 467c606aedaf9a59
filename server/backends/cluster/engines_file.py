"""cluster.toml: which engines a Ray cluster should have.

```toml
[[engines]]
kind   = "image"                     # or chat, classify
count  = "per-gpu"                   # or a number
device = "cuda"                      # or cpu, with a number
nodes  = { gpu = "A100" }            # labels that a node must have; any node if it is left out
models = ["flux-image-1"]            # that image engines draw; all if it is left out
```
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from server.catalog.toml import Strict, error_at, read_toml
from server.errors import StartError

EngineKind = Literal["image", "chat", "classify"]
EngineDevice = Literal["cuda", "cpu"]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]{0,99}$")]
MOVED = {
    "database",
    "storage",
    "gateways",
    "host",
    "port",
    "private_port",
    "ray_port",
}  # to settings, and to `ray start`


class EngineTable(Strict):
    """Engines of one kind on nodes of one sort."""

    kind: EngineKind
    count: Literal["per-gpu"] | Annotated[int, Field(ge=1)] = "per-gpu"
    device: EngineDevice = "cuda"
    nodes: dict[LabelName, Label] = Field(default_factory=dict)
    models: Annotated[list[str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.device == "cpu" and self.count == "per-gpu":
            raise PydanticCustomError("count", "a number as the count of engines on the CPU, such as count = 1")
        if self.kind != "image" and self.count != 1:
            raise PydanticCustomError("count", "count = 1: there is one {kind} engine", {"kind": self.kind})
        if self.kind != "image" and self.models is not None:
            raise PydanticCustomError("models", "no models, which are for image engines")
        return self


class ClusterFile(Strict):
    """The whole file."""

    engines: Annotated[list[EngineTable], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _no_moved_keys(cls, data: Any) -> Any:
        if moved := sorted(MOVED & set(data)):
            what = {"keys": ", ".join(moved)}
            raise PydanticCustomError(
                "moved", "only [[engines]]: {keys} belong elsewhere now (docs/guides/cluster.md, What has moved)", what
            )
        return data

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        kinds = [table.kind for table in self.engines]
        if "image" not in kinds:
            raise PydanticCustomError("engines", 'image engines among the [[engines]]: kind = "image"')
        if any(kinds.count(kind) > 1 for kind in ("chat", "classify")):
            raise PydanticCustomError("engines", "one chat and one classify engine at most")
        return self


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, by the name of its actor, which runs on a node with these `labels`. `beside`: the engines that may
    divide its node's memory with it, itself included; None for one to each GPU of the node."""

    name: str
    kind: EngineKind
    device: EngineDevice
    models: frozenset[str] | None = None  # that an image engine draws; None for any
    labels: Mapping[str, str] = field(default_factory=dict)
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node that runs, as Ray lists it."""

    labels: Mapping[str, str]
    gpus: int


def read_engines(path: Path, models: Collection[str]) -> list[EngineTable]:
    """Read cluster.toml. `models` are those of the catalog. Raises StartError with every error."""
    errors: list[str] = []
    file = read_toml(path, ClusterFile, errors)
    for index, table in enumerate(file.engines if file is not None else ()):
        for name in sorted(set(table.models or ()) - set(models)):
            message = f"{name!r} is not an image model; expected one of {', '.join(models)}"
            errors.append(error_at(path, ("engines", index, "models"), message))
    if file is None or errors:
        raise StartError("\n".join(errors))
    return file.engines


def engines_hash(tables: Sequence[EngineTable]) -> str:
    """Return a hash that tells two files apart."""
    return hashlib.sha256("".join(table.model_dump_json() for table in tables).encode()).hexdigest()[:16]


def plan_engines(tables: Sequence[EngineTable], nodes: Sequence[Node]) -> list[Engine]:
    """Return the engines that there should be. Ray places them; one that has no place waits for a node."""
    engines: list[Engine] = []
    for number, table in enumerate(tables):
        models = frozenset(table.models) if table.models is not None else None
        if table.count == "per-gpu":
            count = sum(node.gpus for node in nodes if table.nodes.items() <= node.labels.items())
            beside = None
        else:
            count = beside = table.count
        names = [f"image-{number}-{index}" for index in range(count)] if table.kind == "image" else [table.kind]
        engines += [Engine(name, table.kind, table.device, models, table.nodes, beside) for name in names]
    return engines
