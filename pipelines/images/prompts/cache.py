"""Prompt embeddings that are kept: a prompt is encoded once for all its images, tiles and later calls."""

import hashlib
import inspect
import math
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves, tree_map_only

from pipelines.device.staged_copy import Transfer, sum_of
from pipelines.images.prompts import long_prompts
from pipelines.images.prompts.reading import Reading, current_reader

BUDGET_BYTES: Final = 256 * 2**20  # for each checkpoint; a prompt takes 4 to 16 MB in the large ones
Scalar = str | int | float | bool | None
PLAIN: Final = (str, int, float, bool)  # attributes of pipelines that change what an encoder computes
TEXTUAL_INVERSION: Final = "maybe_convert_prompt"  # of some classes alone; without loaded inversions it does nothing


class Unkeyable(Exception):
    """An argument of a kind that can't be compared with another call's."""


class PromptCache:
    """One checkpoint's embeddings on its device, within a budget in bytes; the least recently used are dropped.

    Those that are not finite serve the call that made them alone: the fault may have been of the moment. Whether they
    are is known when the next call asks for them, so that nobody waits for the device.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._entries: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._adapters: Hashable = ()
        self._encoders: dict[type[Any], EncoderCode] = {}
        self._lock = threading.Lock()  # runs on several threads encode

    def attach(self, pipeline: Any) -> None:
        """Let the pipeline's calls use the cache. Pipelines without `encode_prompt` are left as they are."""
        if callable(getattr(pipeline, "encode_prompt", None)):
            pipeline.encode_prompt = partial(self._encode, pipeline, pipeline.encode_prompt)

    def set_adapters(self, active: Hashable) -> None:
        """Set the adapters that change the encoders' output from now on, with their weights and hashes."""
        self._adapters = active

    def clear(self) -> None:
        """Drop all embeddings: the weights leave the device, or memory is needed."""
        with self._lock:
            self._entries.clear()

    @property
    def bytes(self) -> int:
        """Return the bytes of all embeddings that are kept, as far as no other thread encodes meanwhile."""
        return sum(tensor.nbytes for kept in self._entries.values() for tensor in _tensors(kept.embeddings))

    def _encode(self, pipeline: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Encode as `pipeline.encode_prompt` does, with the same arguments and the same result, but for a long prompt
        that is read in windows. The call's reader is told the readings, now or when the embeddings were kept."""
        call = inspect.signature(original).bind(*args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        if any(value is not None for name, value in arguments.items() if "embeds" in name):
            return original(*args, **kwargs)  # the caller has encoded it
        reader = current_reader()
        encode = partial(long_prompts.encode, pipeline, reader, original, arguments)
        try:
            kind = type(pipeline)
            code = self._encoders.get(kind) or self._encoders.setdefault(kind, EncoderCode.of(kind))
            key = code.on(pipeline), self._adapters, reader.mode == "chunk", _key(arguments)
        except Unkeyable:
            result, readings = encode()
        else:
            kept = self._kept(key, encode)
            result, readings = kept.embeddings, kept.readings
        reader.add(readings)
        return _copy(result)

    def _kept(self, key: Hashable, encode: Callable[[], tuple[Any, tuple[Reading, ...]]]) -> "_Kept":
        with self._lock:
            kept = self._entries.get(key)
            if kept is not None and kept.is_finite:
                self._entries.move_to_end(key)
                return kept
        result, readings = encode()
        embeddings = _copy(result)  # a copy of its own: some are views of much larger tensors
        kept = _Kept(embeddings, readings, [Transfer(sum_of(tensor)) for tensor in _tensors(embeddings)])
        with self._lock:
            self._entries[key] = kept
            self._entries.move_to_end(key)
            while self.bytes > self._budget_bytes:
                self._entries.popitem(last=False)
        return kept


class _Kept(NamedTuple):
    """A result of `encode_prompt`, the readings of its encoders, and the sums of its tensors on their way to the
    host."""

    embeddings: Any
    readings: tuple[Reading, ...]
    sums: list[Transfer]

    @property
    def is_finite(self) -> bool:
        return all(math.isfinite(each.wait()) for each in self.sums)


def _key(value: Any) -> Hashable:
    """Return a key that is equal for equal values. Images that an encoder sees count by their pixels. Raises
    Unkeyable."""
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, Image.Image):
        return value.mode, value.size, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, torch.Tensor):
        value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
    if isinstance(value, Scalar | torch.device | torch.dtype):
        return type(value).__name__, value
    raise Unkeyable


class EncoderCode(NamedTuple):
    """The code of a class's `encode_prompt`: a digest of its bytecode and of the methods' that it calls, and the other
    names that they read. The pipelines of a checkpoint's tasks have equal copies of it, and so share embeddings."""

    digest: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, kind: type[Any]) -> "EncoderCode":
        """Read the code of a pipeline class."""
        methods: dict[str, Hashable] = {}
        names: set[str] = set()

        def visit(name: str) -> None:
            if name in methods or name in names or name == TEXTUAL_INVERSION or name.startswith("__"):
                return
            method = inspect.getattr_static(kind, name, None)
            function = getattr(method, "__func__", method)  # of static methods too
            if not isinstance(function, types.FunctionType):
                names.add(name)
                return
            function = inspect.unwrap(function)
            methods[name] = (repr(function.__defaults__), *_plain(function.__code__))
            for part in _code_objects(function.__code__):
                for used in part.co_names:
                    visit(used)

        visit("encode_prompt")
        return cls(hashlib.sha256(repr(sorted(methods.items())).encode()).hexdigest(), tuple(sorted(names)))

    def on(self, pipeline: Any) -> Hashable:
        """Return the code's digest with the pipeline's plain values that the code reads."""
        values = vars(pipeline)
        return self.digest, tuple((name, values[name]) for name in self.names if isinstance(values.get(name), PLAIN))


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def _plain(code: types.CodeType) -> Iterator[Hashable]:
    """Yield the parts of a method's code, without line numbers, and without the docstring, which differs by
    pipeline."""
    for part in _code_objects(code):
        constants = part.co_consts[1:] if part is code else part.co_consts
        yield part.co_code, part.co_names, tuple(repr(c) for c in constants if not isinstance(c, types.CodeType))


def _copy(result: Any) -> Any:
    """Copy a result: the pipelines may change it in place."""
    return tree_map_only(torch.Tensor, torch.clone, result)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(result) if torch.is_tensor(each)]
