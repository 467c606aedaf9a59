"""cluster.toml: what a cluster is made of.

```toml
database = "postgresql+psycopg://USER:PASSWORD@HOST/NAME"
storage  = "s3://bucket/prefix"      # or file:///folder, one that all nodes mount
gateways = 2                         # servers; they listen on port, port + 1, ...

[[engines]]
kind   = "image"                     # or chat, classify
count  = "per-gpu"                   # or a number
device = "cuda"                      # or cpu, with a number
nodes  = { gpu = "A100" }            # labels that a node must have; any node if it is left out
models = ["flux-image-1"]            # that image engines draw; all if it is left out
```
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from server.backends.cluster.roster import EngineDevice, EngineKind
from server.catalog.toml import Strict, error_at, read_toml
from server.errors import StartError

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]{0,99}$")]
Port = Annotated[int, Field(ge=1, le=65535)]


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


class ClusterConfig(Strict):
    """The whole file."""

    database: str
    storage: str
    gateways: Annotated[int, Field(ge=1, le=64)] = 2
    host: str = "0.0.0.0"  # noqa: S104
    port: Port = 8080
    private_port: Port = 9090  # where gateways reach each other; counted up like `port`
    ray_port: Port = 6379
    engines: Annotated[list[EngineTable], Field(min_length=1)]

    @field_validator("database")
    @classmethod
    def _postgresql(cls, value: str) -> str:
        try:
            backend = make_url(value).get_backend_name()
        except ArgumentError:
            raise PydanticCustomError("database", "a URL such as postgresql+psycopg://...") from None
        if backend != "postgresql":
            raise PydanticCustomError(
                "database", "a PostgreSQL, which several servers can share: postgresql+psycopg://..."
            )
        return value

    @field_validator("storage")
    @classmethod
    def _shared(cls, value: str) -> str:
        if "://" not in value or (value.startswith("file://") and not value.startswith("file:///")):
            raise PydanticCustomError(
                "storage",
                "s3://bucket/prefix, or file:///folder for one that all nodes mount; a folder of one node will not do",
            )
        return value

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        kinds = [table.kind for table in self.engines]
        if "image" not in kinds:
            raise PydanticCustomError("engines", 'image engines among the [[engines]]: kind = "image"')
        if any(kinds.count(kind) > 1 for kind in ("chat", "classify")):
            raise PydanticCustomError("engines", "one chat and one classify engine at most")
        return self


def read_config(path: Path, models: tuple[str, ...]) -> ClusterConfig:
    """Read cluster.toml. `models` are those of the catalog. Raises StartError with every error."""
    errors: list[str] = []
    config = read_toml(path, ClusterConfig, errors)
    for index, table in enumerate(config.engines if config is not None else ()):
        for name in sorted(set(table.models or ()) - set(models)):
            message = f"{name!r} is not an image model; expected one of {', '.join(models)}"
            errors.append(error_at(path, ("engines", index, "models"), message))
    if config is None or errors:
        raise StartError("\n".join(errors))
    return config
