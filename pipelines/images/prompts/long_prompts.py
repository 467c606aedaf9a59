"""Prompts that are longer than an encoder reads at once, where `long_prompt = "chunk"` asks for all of them.

A U-Net with CLIP alone reads them in windows: of 75 tokens each between CLIP's special ones, encoded one by one, their
embeddings put together along the sequence, which it attends to at any length. Other classes read up to the longest
prompt that their own check of inputs lets through.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import FunctionType
from typing import Any, Final

import torch
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from pipelines.images.prompts.reading import PromptReader, Reading, loses_text
from pipelines.protocol.images import LongPrompt

BOUND: Final = re.compile(r"max_sequence_length\s*>\s*(\d+)")  # in diffusers' checks of inputs


def long_prompt_modes(pipeline_class: type[Any], components: Mapping[str, Any]) -> tuple[LongPrompt, ...]:
    """Return the modes that a class has for a prompt that is too long."""
    reads_all = takes_windows(pipeline_class, components) or sequence_length_limit(pipeline_class) is not None
    return ("refuse", "tell", "chunk") if reads_all else ("refuse", "tell")


def takes_windows(pipeline_class: type[Any], components: Mapping[str, Any]) -> bool:
    """Return whether CLIP alone reads the prompt, for a UNet."""
    tokenizers = [part for part in components.values() if isinstance(part, PreTrainedTokenizerBase)]
    only_clip = bool(tokenizers) and all(isinstance(part, CLIPTokenizer) for part in tokenizers)
    return only_clip and "unet" in components and hasattr(pipeline_class, "encode_prompt")


def sequence_length_limit(pipeline_class: type[Any]) -> int | None:
    """Return the largest `max_sequence_length` of a class; None if it names no bound."""
    check = getattr(pipeline_class, "check_inputs", None)
    return _bound(check) if isinstance(check, FunctionType) else None


@cache  # reading the source of a method takes a tenth of a second
def _bound(check: FunctionType) -> int | None:
    found = BOUND.search(inspect.getsource(check))
    return int(found[1]) if found is not None else None


def encode(
    pipeline: Any, reader: PromptReader, original: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Any, tuple[Reading, ...]]:
    """Call `original`, the pipeline's `encode_prompt`, with these arguments. Returns its result, and how much of the
    prompts it read. A prompt that fits is encoded as without `chunk`."""
    kind, length = type(pipeline), arguments.get("max_sequence_length")
    run = partial(original, **arguments)
    if reader.mode == "chunk" and takes_windows(kind, pipeline.components):
        return reader.gather(lambda: _joined(reader.in_windows(run)), None, lambda _: False)
    result, readings = reader.gather(run, length, partial(_has_length, length))
    most = sequence_length_limit(kind) if reader.mode == "chunk" and loses_text(readings) else None
    if most is None or length is None or most <= length:
        return result, readings
    longer = partial(original, **{**arguments, "max_sequence_length": most})
    return reader.gather(longer, most, partial(_has_length, most))


def _has_length(length: int | None, result: Any) -> bool:
    """Return whether embeddings may have been cut: some classes tokenize more than they keep."""
    return length in {tensor.shape[1] for tensor in _sequences(result)}


def _sequences(result: Any) -> list[torch.Tensor]:
    """Return the embeddings that are by batch, token and channel; others are of a whole prompt."""
    parts = result if isinstance(result, list | tuple) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor) and part.dim() == 3]


def _joined(results: list[Any]) -> Any:
    """Join the windows' results: the sequences one after another, and of whole prompts the first window's."""
    first = results[0]
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(parts)) for parts in zip(*results, strict=True))
    return torch.cat(results, dim=1) if isinstance(first, torch.Tensor) and first.dim() == 3 else first
