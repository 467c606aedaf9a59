"""`make reference`: writes the pages that the code itself says: settings, catalog keys and commands in docs/reference/,
and the settings of clients.

`python -m release.reference`. tests/unit/test_reference.py fails if a page is not what this writes.
"""

import ast
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperGroup

from server.catalog import chat, schema
from server.cli.app import app
from server.cli.clients import CLIENTS
from server.data_folders import REPOSITORY
from server.settings import PREFIX, Settings

FOLDER = REPOSITORY / "docs" / "reference"
NOTE = "<!-- Written by `make reference` from {source}. Change it there. -->\n"
SECTIONS = {
    "host": "Addresses and places",
    "max_n": "Answers",
    "max_queue": "Limits and times",
    "lease_s": "Life of the server and its records",
    "device": "Models and devices",
    "oidc_issuer": "Signing in to the console",
    "fetch": "Going out: fetching, webhooks, moderation, traces, logs",
}  # the setting before which a heading stands
TABLES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("A checkpoint's file", "The top of a file in `model_configs/`, above its tables.", schema.CheckpointFile),
    ("`[[models]]`", "The names that callers use for the checkpoint.", schema.ModelTable),
    ("`[quality]`", "Denoising steps by quality. With this table callers may send `quality`.", schema.QualityTable),
    ("`[sampling]`", "Values for requests that do not send their own.", schema.SamplingTable),
    ("`[runtime]`", "How the checkpoint is loaded ([runtime options](runtime-options.md)).", schema.RuntimeTable),
    ("`cache` in `[runtime]`", "Step caching: faster, and not exact.", schema.CacheTable),
    ("`loras` in `[runtime]`", "One entry an adapter.", schema.LoraTable),
    ("`[references]`", "Another checkpoint for calls with references: keys as above.", schema.ReferencesTable),
    ("`[upstream]`", "A model that another server draws, in place of `checkpoint`.", schema.UpstreamTable),
    ("`[[controlnets]]`", "A ControlNet that requests may name in `controls`.", schema.ControlNetTable),
    ("`[[t2i_adapters]]`", "A T2I-Adapter that requests may name in `controls`.", schema.T2IAdapterTable),
    ("`[[ip_adapters]]`", "An IP-Adapter that requests may name in `controls`.", schema.IPAdapterTable),
    ("`catalog.toml`", "What all files share.", schema.CatalogFile),
    ("`[aliases]` in `catalog.toml`", "`name = \"model\"`, or a table with these keys.", schema.AliasTable),
    ("`chat.toml`", "The chat models.", chat.ChatFile),
    ("`[[models]]` in `chat.toml`", "One entry a chat model: a `checkpoint` or an `upstream`.", chat.ChatTable),
    ("`defaults` in `chat.toml`", "The sampling of requests that don't say.", chat.SamplingDefaults),
)  # fmt: skip


def settings_page() -> str:
    """Return the page of all settings, in the order of the class."""
    lines = [
        "# Settings",
        "",
        NOTE.format(source="server/settings.py"),
        "Set environment variables to change how the server runs. The server and every `darkroom` command read them,",
        "once, at start. The defaults suit one machine. `darkroom serve` also takes `--host` and `--port`. If you",
        "misspell a variable, the start names it.",
    ]
    meanings, values = attribute_docstrings(Settings), dict[str, Any]()
    for name, field in Settings.model_fields.items():
        values[name] = field.get_default(call_default_factory=True, validated_data=values)
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", "", "| variable | default | meaning |", "| --- | --- | --- |"]
        choices = _choices(field.annotation)
        allowed = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
        meaning = f"{_cell(meanings[name])}{allowed}"
        lines.append(f"| `{PREFIX}{name.upper()}` | {_default(field, values)} | {meaning} |")
    return "\n".join(lines) + "\n"


def catalog_page() -> str:
    """Return the page of all keys of catalog files, by table."""
    lines = [
        "# Catalog files",
        "",
        NOTE.format(source="server/catalog/schema.py and chat.py"),
        "The catalog is the folder `model_configs/` (`DARKROOM_MODEL_CONFIGS`): a TOML file for each checkpoint, and",
        "`catalog.toml`, `chat.toml` and `presets.toml` (width and height of each ratio, by tier). Run",
        "`darkroom reload` after you change a file. If you misspell a key, the error names the nearest one.",
        "[Checkpoints](../../weights.md) says how to begin.",
    ]
    for title, text, model in TABLES:
        meanings = attribute_docstrings(model)
        inherited = set(schema.CheckpointTable.model_fields) if model is schema.ReferencesTable else set()
        lines += ["", f"## {title}", "", text, "", "| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        for name, field in model.model_fields.items():
            if name not in inherited or name in model.__annotations__:
                key = field.alias or name
                lines.append(f"| `{key}` | {_values(field)} | {_default(field)} | {_cell(meanings.get(name, ''))} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Return the page of all commands with their arguments and options."""
    lines = [
        "# Commands",
        "",
        NOTE.format(source="server/cli/"),
        "Run `darkroom COMMAND --help` to read the same on your terminal. In a checkout the command is",
        "`.venv/bin/darkroom`; after `pip install` of the wheel it is `darkroom`. Every command reads the",
        "[settings](settings.md). For KEY give the id or the name of a key, or a beginning that no other key has.",
    ]
    root = typer.main.get_command(app)
    for path, command in _commands(root, "darkroom"):
        hidden = {"help"}
        parameters = [each for each in command.params if each.name not in hidden]
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        usage = " ".join([path, *(each.name.upper() for each in arguments)])
        lines += ["", f"## {path.removeprefix('darkroom ')}", "", f"`{usage}`", "", _sentence(command.help)]
        rows = [f"| {_option(each)} | {_cell(getattr(each, 'help', None) or '')} |" for each in parameters]
        if rows:
            lines += ["", "| argument or option | meaning |", "| --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def clients_page() -> str:
    """Return the guide to clients, with the settings that `darkroom clients` prints between its marks."""
    begin, end = "<!-- Written by `make reference` from server/cli/clients.py. -->\n", "<!-- end -->\n"
    before, _, rest = (FOLDER / CLIENTS_PAGE).read_text().partition(begin)
    return before + begin + "\n" + "".join(map(_client_section, CLIENTS)) + end + rest.partition(end)[2]


def _client_section(name: str) -> str:
    client = CLIENTS[name]
    steps = (f"{step.place}:\n\n```{step.language}\n{step.text}\n```\n\n" for step in client.steps)
    note = "\n".join(textwrap.wrap(client.note, 120, break_long_words=False, break_on_hyphens=False))
    return f"### {client.title}\n\n`darkroom clients {name}`\n\n{''.join(steps)}{note}{note and chr(10) * 2}"


CLIENTS_PAGE = "../guides/clients.md"
PAGES = {"settings.md": settings_page, "catalog.md": catalog_page, "cli.md": cli_page, CLIENTS_PAGE: clients_page}


def attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each attribute of the class and of its bases, by name."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (isinstance(base, type) and issubclass(base, BaseModel)) or base is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for attribute, below in pairwise(statements):
            match attribute, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from _commands(each, f"{path} {name}")
    else:
        yield path, command


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    return names if parameter.is_flag else f"{names} {parameter.name.upper()}"


def _default(field: FieldInfo, earlier: dict[str, Any] | None = None) -> str:
    value = field.get_default(call_default_factory=True, validated_data=earlier)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return f"`{os.path.relpath(value, REPOSITORY) if value.is_relative_to(REPOSITORY) else value}`"
    if isinstance(value, tuple | list) and value:
        return ", ".join(f"`{each}`" for each in value)
    if value is None or isinstance(value, BaseModel) or value in ("", (), [], {}):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _values(field: FieldInfo) -> str:
    """Return what TOML may have there: a type's name, or the choices."""
    if choices := _choices(field.annotation):
        return ", ".join(f"`{choice}`" for choice in choices)
    low = next((each for each in (_bound(field, "ge", ""), _bound(field, "gt", "above ")) if each), "")
    high = next((each for each in (_bound(field, "le", ""), _bound(field, "lt", "below ")) if each), "")
    kind = _kind(field.annotation)
    return f"{kind}, {low} to {high}" if low and high else f"{kind}, {low} or more" if low else kind


def _bound(field: FieldInfo, name: str, word: str) -> str:
    values = [getattr(each, name) for each in _constraints(field) if getattr(each, name, None) is not None]
    return f"{word}{values[0]}" if values else ""


def _constraints(field: FieldInfo) -> list[Any]:
    nested = [part for part in get_args(field.annotation) if get_origin(part) is Annotated]
    infos = [each for part in nested for each in get_args(part)[1:] if isinstance(each, FieldInfo)]
    return [*field.metadata, *(each for info in infos for each in info.metadata)]


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts))
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in get_args(annotation))
    if origin in (list, tuple):
        return "list"
    if origin is dict or (isinstance(origin, type) and issubclass(origin, BaseModel)):
        return "table"
    return {str: "text", bool: "true or false", int: "number", float: "number"}.get(origin, "text")


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values of a Literal, also of one that may be missing."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return tuple(str(each) for each in get_args(annotation))
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return _choices(parts[0]) if get_origin(annotation) in (Union, types.UnionType) and len(parts) == 1 else ()


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return _sentence(text).replace("|", "\\|")


def main() -> int:
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
