"""A chat checkpoint in memory: the model, its tokenizer, and what can be told of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from pipelines.catalog.checkpoint_files import PICKLES, CheckpointError
from pipelines.chat.tokens import TokenTable
from pipelines.chat.tool_syntax import Syntax
from pipelines.device.dtypes import compute_dtype
from pipelines.protocol.chat import ChatSpec


@dataclass(frozen=True, slots=True, eq=False)
class ChatCheckpoint:
    """What every job on one spec shares. Nothing in it changes."""

    spec: ChatSpec
    model: Any
    tokenizer: Any  # only the thread that prepares prompts may use it
    processor: Any  # makes prompts of text and pictures; None for a model that sees none
    template: str  # of a chat
    tokens: TokenTable
    device: torch.device
    context: int  # prompt and answer, in tokens
    ends: frozenset[int]  # tokens that end an answer
    syntax: Syntax  # of reasoning and tool calls
    abilities: None = None  # what a client may ask of a chat model is the catalog's to say


def load_chat(spec: ChatSpec, device: torch.device) -> ChatCheckpoint:
    """Read the folder. Raises CheckpointError."""
    _check_files(spec.path)
    try:
        local = {"local_files_only": True, "trust_remote_code": False}
        processor = AutoProcessor.from_pretrained(spec.path, **local) if spec.vision else None
        tokenizer = processor.tokenizer if processor else AutoTokenizer.from_pretrained(spec.path, **local)
        kind = AutoModelForImageTextToText if spec.vision else AutoModelForCausalLM
        model = kind.from_pretrained(
            spec.path,
            **local,
            use_safetensors=True,
            dtype=compute_dtype(spec.dtype, device),
            **({} if device.type == "cpu" else {"device_map": device.type}),
        ).eval()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the library raises anything for a broken folder
        raise CheckpointError(f"{spec.path} does not load: {type(error).__name__}: {error}") from error
    template = getattr(processor, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    if not template:
        raise CheckpointError(f"{spec.path}: the tokenizer has no chat template")
    ends = _ends(model, tokenizer)
    if not ends:
        raise CheckpointError(f"{spec.path}: neither generation_config.json nor the tokenizer names an end token")
    return ChatCheckpoint(
        spec=spec,
        model=model,
        tokenizer=tokenizer,
        processor=processor,
        template=template,
        tokens=TokenTable(tokenizer, ends),
        device=device,
        context=_context(spec, model),
        ends=frozenset(ends),
        syntax=Syntax.of(tokenizer, template),
    )


def _check_files(folder: Path) -> None:
    """Raises CheckpointError for what can be told without loading."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no config.json, so this is no transformers folder")
    if code := next(folder.rglob("*.py"), None):
        raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the model works without")
    if not any(folder.glob("*.safetensors")):
        pickled = next((file for pattern in PICKLES for file in folder.glob(pattern)), None)
        found = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {found}; convert the checkpoint to safetensors")
    if getattr(AutoConfig.from_pretrained(folder, local_files_only=True), "auto_map", None):
        raise CheckpointError(f"{folder / 'config.json'}: its auto_map names code of the checkpoint's own")


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokenizer's own end first, then what the generation config adds."""
    named = model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    return list(dict.fromkeys(end for end in ends if end is not None))


def _context(spec: ChatSpec, model: Any) -> int:
    """Raises CheckpointError when nothing says how long a context the model was made for."""
    made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context := spec.context or made_for:
        return int(context)
    raise CheckpointError(f"{spec.path}: config.json names no context length; set `context` in the catalog")
