"""model_configs/chat.toml: the chat models. Each is a transformers folder, or a name at an OpenAI-compatible server."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipelines.checkpoints.folder.versions import files_version
from pipelines.checkpoints.memory.chat_files import read_sampling_defaults, sees_images
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.images import Dtype
from pipelines.protocol.upstream import Upstream
from server.catalog.specs import ModelNames
from server.catalog.toml import KeyPath, ServerUrl, Strict, error_at, read_toml

CREATED = 1_760_000_000  # as the image models' date: OpenAI's model objects must have one
FOLDER_KEYS = ("tools", "context", "max_batch", "max_string", "dtype", "quantize", "syntax", "defaults")
UPSTREAM_KEYS = ("upstream_model", "api_key_env")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$")]


class SamplingDefaults(Strict):
    """How answers are sampled where requests don't say. What is unset is as the checkpoint's makers say."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Above 0, less likely tokens come, too."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """The likeliest tokens that reach this probability are kept."""
    top_k: Annotated[int, Field(ge=0)] | None = None
    """So many of the likeliest tokens are kept; 0 keeps all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Tokens are kept that have this part of the likeliest one's probability."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Above 1, tokens that were there come less often."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """As OpenAI has it."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """As OpenAI has it."""


class ChatTable(Strict):
    """One served name."""

    name: Name
    """The name that callers send."""
    group: str | None = None
    """The group that a key needs, instead of the file's."""
    checkpoint: Annotated[str, Field(min_length=1)] | None = None
    """A transformers folder in the weights folder, or a `.gguf` file in it."""
    tools: bool = False
    """Whether its chat template supports tools."""
    vision: bool | None = None
    """Whether it reads images; if unset, what its files say. Another server is sent them unless this is `false`."""
    context: Annotated[int, Field(ge=16)] | None = None
    """Tokens of prompt and answer together; if unset, the model's own limit."""
    max_batch: Annotated[int, Field(ge=1, le=1024)] = 32
    """Most answers that are decoded in one batch."""
    max_string: Annotated[int, Field(ge=16, le=100_000)] | None = None
    """Characters at which a string in JSON ends if its schema has no bound, for a weak model that ends none. An answer
    with such a string says that it was cut."""
    dtype: Dtype = "auto"
    """Number format of weights, as in `[runtime]`."""
    quantize: Literal["none", "int8", "int4", "nf4"] = "none"
    """Fewer bits a weight, as in `[runtime]`: `int8` and `int4` need torchao, `nf4` needs bitsandbytes."""
    syntax: str | None = None
    """How it writes thoughts and tool calls, if its template does not show it: `hermes`, `harmony`, ..."""
    defaults: SamplingDefaults = Field(default_factory=SamplingDefaults)
    """How its answers are sampled where requests don't say, instead of the file's."""
    upstream: ServerUrl | None = None
    """The address of another server, which ends in `/v1`, instead of a checkpoint."""
    upstream_model: str | None = None
    """The model's name there, if it is another."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The environment variable with the key of that server."""
    image_model: str | None = None
    """The image model of its image tool, instead of the file's."""


class ChatFile(Strict):
    """chat.toml."""

    default: str | None = None
    """The model of a request that names none."""
    group: str = "chat"
    """The group that a key needs."""
    image_model: str | None = None
    """The image model that the image tool calls."""
    defaults: SamplingDefaults = Field(default_factory=SamplingDefaults)
    """How answers are sampled where requests don't say, instead of what generation_config.json says."""
    models: list[ChatTable] = Field(default_factory=list)
    """The chat models."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """More names: `"gpt-4o" = "starter-chat"`, or patterns: `"gpt-5*" = "starter-chat"`."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A served name, and the checkpoint or upstream behind it."""

    name: str
    group: str
    source: ChatSpec | Upstream
    image_model: str | None = None  # of its image tool; None is the catalog's default
    created: int = CREATED
    owned_by: str = "darkroom"

    @property
    def spec(self) -> ChatSpec | None:
        """Return the local checkpoint; None for a model of another server."""
        return self.source if isinstance(self.source, ChatSpec) else None

    @property
    def place(self) -> str:
        """Return the checkpoint's folder, or the other server's address, for people to read."""
        return self.source.name if isinstance(self.source, ChatSpec) else self.source.base_url

    @property
    def tools(self) -> bool | None:
        """Return whether the model calls tools; None if only its server knows."""
        return self.spec.tools if self.spec else None

    @property
    def vision(self) -> bool | None:
        """Return whether it sees images; None if only its server knows."""
        return self.source.vision


@dataclass(frozen=True, slots=True)
class ChatCatalog(ModelNames[ChatModel]):
    """All chat models and their aliases."""

    @property
    def checkpoints(self) -> tuple[ChatSpec, ...]:
        """Return each local checkpoint once."""
        return tuple(dict.fromkeys(model.spec for model in self.models.values() if model.spec))

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Return each upstream model once."""
        sources = (model.source for model in self.models.values())
        return tuple(dict.fromkeys(source for source in sources if isinstance(source, Upstream)))


def read_chat(path: Path, weights: Path, image_models: Collection[str], errors: list[str]) -> ChatCatalog:
    """Read the catalog from the file; it is empty if there is no file. `image_models` are names that it may not use."""
    if not path.exists():
        return ChatCatalog()
    file = read_toml(path, ChatFile, errors)
    if file is None:
        return ChatCatalog()
    errors += [error_at(path, key_path, message) for key_path, message in _validate_file(file, image_models)]
    models = {table.name: _model(table, file, weights) for table in file.models}
    return ChatCatalog(models, file.aliases, file.default)


def _validate_file(file: ChatFile, image_models: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yield key paths and their errors."""
    names = [table.name for table in file.models]
    folders: dict[str, ChatTable] = {}
    tables: list[tuple[KeyPath, ChatFile | ChatTable]] = [((), file)]
    for key_path, table in [*tables, *((("models", index), table) for index, table in enumerate(file.models))]:
        if table.image_model is not None and table.image_model not in image_models:
            known = ", ".join(sorted(image_models))
            yield (*key_path, "image_model"), f"{table.image_model!r} is not an image model; expected one of {known}"
    for index, table in enumerate(file.models):
        for key, message in _validate_model(table):
            yield ("models", index, key), message
        if table.name in image_models or table.name in names[:index]:
            yield ("models", index, "name"), f"{table.name!r} is served already"
        if table.checkpoint and _options(folders.setdefault(table.checkpoint, table)) != _options(table):
            message = f"{table.checkpoint!r} is loaded once; give it the same options under every name"
            yield ("models", index, "checkpoint"), message
    known = ", ".join(names) or "none"
    for alias, name in file.aliases.items():
        if name not in names:
            yield ("aliases", alias), f"{name!r} is not a chat model; expected one of {known}"
        if alias in names:
            yield ("aliases", alias), "is a model of its own"
    if file.default is not None and file.default not in names:
        yield ("default",), f"{file.default!r} is not a chat model; expected one of {known}"


def _validate_model(table: ChatTable) -> Iterator[tuple[str, str]]:
    if (table.checkpoint is None) == (table.upstream is None):
        yield "checkpoint", "a model has either a checkpoint or an upstream"
    for key in FOLDER_KEYS if table.upstream else UPSTREAM_KEYS:
        if key in table.model_fields_set:
            yield key, f"belongs to a model with {'a checkpoint' if table.upstream else 'an upstream'}"


def _options(table: ChatTable) -> dict[str, object]:
    return {key: getattr(table, key) for key in (*FOLDER_KEYS, "vision")}


def _model(table: ChatTable, file: ChatFile, weights: Path) -> ChatModel:
    source: ChatSpec | Upstream
    if table.upstream is not None:
        name = table.upstream_model or table.name
        source = Upstream(table.upstream.rstrip("/"), name, table.api_key_env, table.vision)
    else:
        folder = table.checkpoint or ""
        path = weights / folder
        options = table.model_dump(include=set(FOLDER_KEYS) - {"defaults"})
        options["vision"] = sees_images(path) if table.vision is None else table.vision
        defaults, version = _defaults(table, file, path), files_version([path])
        made_by = f"chat.toml: {table.name}"
        source = ChatSpec(name=folder, path=path, **options, defaults=defaults, version=version, source=made_by)
    return ChatModel(table.name, table.group or file.group, source, table.image_model or file.image_model)


def _defaults(table: ChatTable, file: ChatFile, folder: Path) -> tuple[tuple[str, float], ...]:
    """Return the sampling of the model's table, else of the file's, else of its makers."""
    named = file.defaults.model_dump(exclude_none=True) | table.defaults.model_dump(exclude_none=True)
    return tuple(sorted((read_sampling_defaults(folder) | named).items()))
