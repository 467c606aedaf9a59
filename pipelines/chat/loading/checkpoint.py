"""A chat checkpoint in memory: the model, its tokenizer, and the facts that follow from both."""

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pipelines.chat.loading.checkpoint_files import check_files, open_checkpoint, quantization_notes
from pipelines.chat.loading.packed_linear import pack_linears
from pipelines.chat.model.batching import Batching, find_batching
from pipelines.chat.model.kv_pages import PAGE
from pipelines.chat.preparation import LIMIT_S, TookTooLong, run_within
from pipelines.chat.prompts.chat_template import ChatTemplates
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.output_syntax import OutputSyntax
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.checkpoints.errors import CheckpointError
from pipelines.device.attention import attention_notes
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.graph_capture import CAPTURES
from pipelines.device.memory import copy_mapped_weights
from pipelines.protocol.chat import ChatCapabilities, ChatSpec


@dataclass(slots=True)
class CacheShare:
    """Bytes for the keys and values of each checkpoint that keeps any. They share the memory in equal parts, so that it
    changes as they come and go."""

    bytes: int = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class ChatCheckpoint:
    """A loaded chat checkpoint, shared by all jobs on one spec. Immutable."""

    spec: ChatSpec
    model: Any
    tokenizer: Any  # which the threads that prepare prompts share
    processor: Any  # of a vision model: prompts of text and images; else None
    templates: ChatTemplates  # for prompts
    tokens: TokenTable
    device: torch.device
    most_tokens: int  # of prompt and answer, that the model was made for or the catalog allows
    syntax: OutputSyntax  # of reasoning and tool calls
    batching: Batching  # whether answers are written together, and how
    cache_share: CacheShare = field(default_factory=CacheShare)
    notes: tuple[str, ...] = ()  # on its files, for the operator
    processing: threading.Lock = field(default_factory=threading.Lock)  # one thread at a time may use the processor

    @property
    def context(self) -> int:
        """Return how many tokens prompt and answer may have: no more than the memory for keys and values holds."""
        token_bytes = self.batching.token_bytes
        held = self.cache_share.bytes // token_bytes // PAGE * PAGE if token_bytes else self.most_tokens
        return min(self.most_tokens, held)

    @property
    def found(self) -> ChatCapabilities:
        """Return the checkpoint's facts for the server and its operator: context length, vision, tools, batching and
        notes."""
        why = self.batching.unbatched_reason
        alone = [f"answers one at a time: {why}"] if why else []
        if self.processor and not why:
            alone = ["answers to chats with images one at a time"]
        launched = self.device.type in CAPTURES and not why and not self.batching.graphs
        slow = ["its decode steps are launched kernel by kernel: no CUDA graph repeats them"] if launched else []
        tools = self.templates.choose(tools=True).traits.tools is not None
        return ChatCapabilities(
            self.context, self.processor is not None, tools, why, (*self.notes, *alone, *slow, *attention_notes())
        )

    @property
    def is_quantized(self) -> bool:
        """Return whether a library holds the weights in a form of its own, which can't be moved off the device."""
        return getattr(self.model, "hf_quantizer", None) is not None


def load_chat(spec: ChatSpec, device: torch.device, cache_share: CacheShare | None = None) -> ChatCheckpoint:
    """Load a chat checkpoint. Raises CheckpointError for a folder that does not load."""
    check_files(spec.path)
    torch.backends.cuda.enable_cudnn_sdp(False)  # on a B200 it corrupts answers of models with under eight KV heads
    try:
        return _load(spec, device, cache_share or CacheShare())
    except CheckpointError:
        raise
    except Exception as error:  # libraries raise anything for a broken folder
        if is_out_of_memory(error) or is_device_error(error):  # not the folder's fault
            raise
        raise CheckpointError(f"{spec.path} does not load: {type(error).__name__}: {error}") from error


def _load(spec: ChatSpec, device: torch.device, cache_share: CacheShare) -> ChatCheckpoint:
    processor, tokenizer, model, notes = open_checkpoint(spec, device)
    template = getattr(processor, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    if not template:
        remedy = "put the one that its makers publish beside it, as chat_template.jinja"
        raise CheckpointError(f"{spec.path}: the tokenizer has no chat template; {remedy}")
    try:
        templates = run_within(LIMIT_S, partial(ChatTemplates.of, processor or tokenizer, template))
    except TookTooLong as error:
        raise CheckpointError(f"{spec.path}: its chat template does not end within {LIMIT_S:g} s") from error
    eos_ids = _eos_ids(model, tokenizer)
    if not eos_ids:
        raise CheckpointError(f"{spec.path}: neither generation_config.json nor the tokenizer names an end token")
    model.eval()
    if device.type == "cpu":
        pack_linears(model)
    copy_mapped_weights([model])
    tokens = TokenTable(tokenizer, eos_ids)
    tokenizer.encode("a", add_special_tokens=False)  # sets up the tokenizer, which threads can't do beside each other
    syntax, most_tokens = _syntax(spec, tokenizer, templates, model), _context_length(spec, model)
    return ChatCheckpoint(
        spec=spec,
        model=model,
        tokenizer=tokenizer,
        processor=processor,
        templates=templates,
        tokens=tokens,
        device=device,
        most_tokens=most_tokens,
        batching=find_batching(model, device, tokens.vocab_size, most_tokens),
        cache_share=cache_share,
        syntax=syntax,
        notes=(*notes, *quantization_notes(spec.path, model), *(_tool_notes(templates, syntax) if spec.tools else ())),
    )


def _tool_notes(templates: ChatTemplates, syntax: OutputSyntax) -> list[str]:
    """Return what an operator who offers tools should know."""
    unknown = syntax.is_unknown and templates.choose(tools=True).traits.tools
    how = "it writes calls in a way that is not known here, so they come as text unless `tool_choice` requires one"
    return [*templates.notes, *([how] if unknown else [])]


def _syntax(spec: ChatSpec, tokenizer: Any, templates: ChatTemplates, model: Any) -> OutputSyntax:
    """Return how the checkpoint writes thoughts and calls. Raises CheckpointError for a name that the table lacks."""
    if spec.syntax is not None and spec.syntax not in TABLE:
        known = ", ".join(TABLE)
        raise CheckpointError(f"{spec.path}: `syntax` = {spec.syntax!r} is unknown; expected one of {known}")
    model_type = model.config.get_text_config().model_type
    return OutputSyntax.of(tokenizer, templates.text, model_type, spec.syntax, templates.shown_call)


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer: the tokenizer's own first, then those that the generation config adds."""
    configured = model.generation_config.eos_token_id
    eos_ids = [tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])]
    return list(dict.fromkeys(eos_id for eos_id in eos_ids if eos_id is not None))


def _context_length(spec: ChatSpec, model: Any) -> int:
    """Return the context length in tokens. Raises CheckpointError where neither the catalog nor the checkpoint has
    one."""
    max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context := spec.context or max_positions:
        return int(context)
    raise CheckpointError(f"{spec.path}: config.json names no context length; set `context` in the catalog")
