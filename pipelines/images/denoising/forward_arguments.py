"""The arguments of a denoiser's forward pass as rows: which of them several passes can share, and how.

Every tensor whose first dimension counts images is concatenated, in dicts, tuples, lists and dataclasses too; a
scalar becomes one value for each row. All else, such as position ids, must be equal in all passes, which their keys
say. A denoiser that takes a list of images has them as a list's items. Prompts of other lengths are padded where the
denoiser takes a mask for that.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

TEXT, MASK = "encoder_hidden_states", "encoder_hidden_states_mask"  # (rows, tokens, channels); (rows, tokens) or None


class Unmergeable(Exception):
    """The arguments have a form that is not known to be safe to share."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a forward pass counts its rows: `listed` if its first argument is a list with an item for each image."""

    rows: int
    listed: bool

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Layout":
        """Read the layout from the first argument, the noisy latents. Raises Unmergeable."""
        latents = next(iter(arguments.values()), None)
        if isinstance(latents, torch.Tensor) and latents.dim() > 0:
            return cls(latents.shape[0], listed=False)
        if isinstance(latents, list) and latents and all(isinstance(item, torch.Tensor) for item in latents):
            return cls(len(latents), listed=True)
        raise Unmergeable(f"its first argument is a {type(latents).__name__}")


class Fingerprints:
    """Digests of tensors that all passes must have in common. Each is read from the device once in its life: pipelines
    make position ids once for an image and pass them at every step.
    """

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def of(self, tensor: torch.Tensor) -> bytes:
        """Return the digest of a tensor's values."""
        known: bytes | None = self._known.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            known = hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()
            self._known[tensor] = known
        return known


def shared_key(arguments: Mapping[str, Any], layout: Layout, fingerprints: Fingerprints) -> Hashable:
    """Return a key that is equal for passes that can be one. Raises Unmergeable."""

    def key(value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            form = (value.dtype, value.device)
            if value.dim() == 0:
                return ("scalar", *form)
            if _has_rows(value, layout):
                return ("rows", *form, tuple(value.shape[1:]))
            return ("same", *form, tuple(value.shape), fingerprints.of(value))
        if isinstance(value, Mapping):
            return ("mapping", *((name, key(item)) for name, item in value.items()))
        if _has_items(value, layout):
            return ("items", frozenset(_item_key(item, is_image=value is latents) for item in value))
        if isinstance(value, list | tuple):
            if _is_repeated_value(value, layout):  # such as the shapes of all images
                return ("repeated", type(value), _plain_value(value[0]))
            return (type(value), *(key(item) for item in value))
        return _plain_value(value)

    latents = next(iter(arguments.values()))
    if not _is_masked(arguments, layout):
        return key(arguments)
    text = arguments[TEXT]
    others = {name: value for name, value in arguments.items() if name not in {TEXT, MASK}}
    return ("masked text", text.dtype, text.device, text.shape[2], key(others))


def _item_key(item: Any, *, is_image: bool) -> Hashable:
    """Return the key of an item of a list. Images must be of one size. Their prompts may differ in length: the denoiser
    itself pads them."""
    if isinstance(item, torch.Tensor):
        return item.dtype, item.device, tuple(item.shape) if is_image else item.dim()
    if isinstance(item, list | tuple):
        return tuple(_item_key(part, is_image=is_image) for part in item)
    return _plain_value(item)


def merge(passes: Sequence[Mapping[str, Any]], layouts: Sequence[Layout]) -> dict[str, Any]:
    """Return the arguments of one pass for several whose keys are equal."""
    masked = {TEXT, MASK} if _is_masked(passes[0], layouts[0]) else set()
    merged = {name: _concatenate([each[name] for each in passes], layouts) for name in passes[0].keys() - masked}
    return merged | pad_text(passes) if masked else merged


def _is_masked(arguments: Mapping[str, Any], layout: Layout) -> bool:
    text = arguments.get(TEXT)
    return MASK in arguments and isinstance(text, torch.Tensor) and text.dim() == 3 and _has_rows(text, layout)


def pad_text(passes: Sequence[Mapping[str, Any]], length: int = 0) -> dict[str, Any]:
    """Pad prompts to the length of the longest, or to this one, and mask the padding."""
    texts, masks = [each[TEXT] for each in passes], [each[MASK] for each in passes]
    longest = max(length, *(text.shape[1] for text in texts))
    if all(text.shape[1] == longest for text in texts) and all(mask is None for mask in masks):
        return {TEXT: torch.cat(texts), MASK: None}
    whole = [text.new_ones(text.shape[:2], dtype=torch.bool) for text in texts]
    masks = [one if mask is None else mask.bool() for mask, one in zip(masks, whole, strict=True)]
    return {
        TEXT: torch.cat([pad(text, (0, 0, 0, longest - text.shape[1])) for text in texts]),
        MASK: torch.cat([pad(mask, (0, longest - mask.shape[1])) for mask in masks]),
    }


def _concatenate(values: Sequence[Any], layouts: Sequence[Layout]) -> Any:
    """Return an argument of several passes as one argument for all of their rows."""
    first, layout = values[0], layouts[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return torch.cat([value.expand(each.rows) for value, each in zip(values, layouts, strict=True)])
        return torch.cat(list(values)) if _has_rows(first, layout) else first
    if isinstance(first, Mapping):
        return {name: _concatenate([value[name] for value in values], layouts) for name in first}
    if _has_items(first, layout) or _is_repeated_value(first, layout):
        return [item for value in values for item in value]
    if isinstance(first, list | tuple):
        return type(first)(_concatenate(items, layouts) for items in zip(*values, strict=True))
    return first


def split(output: Any, layouts: Sequence[Layout]) -> list[Any]:
    """Split the shared pass's output into each pass's part. Raises Unmergeable for an output without rows."""
    total = sum(layout.rows for layout in layouts)
    starts = [sum(layout.rows for layout in layouts[:number]) for number in range(len(layouts))]

    def part(value: Any, start: int, rows: int) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dim() == 0 or value.shape[0] != total:
                raise Unmergeable(f"it returned a tensor of shape {tuple(value.shape)} for {total} rows")
            return value[start : start + rows]
        if isinstance(value, list) and len(value) == total:
            return value[start : start + rows]
        if isinstance(value, Mapping):  # a dict, or a ModelOutput of the library
            return type(value)(**{name: part(item, start, rows) for name, item in value.items()})
        if isinstance(value, list | tuple):
            return type(value)(part(item, start, rows) for item in value)
        if value is None:
            return None
        raise Unmergeable(f"it returned a {type(value).__name__}")

    return [part(output, start, layout.rows) for start, layout in zip(starts, layouts, strict=True)]


def structure(key: Hashable) -> Hashable:
    """Return a key without sizes and values: a merge that was shown to be safe for one size is safe for all."""
    match key:
        case ("rows", dtype, device, tuple() as shape):
            return "rows", dtype, device, len(shape)
        case ("same", dtype, device, tuple() as shape, _):
            return "same", dtype, device, len(shape)
        case ("items", frozenset()):
            return ("items",)
        case tuple():
            return tuple(structure(item) for item in key)
    return key


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest difference of two outputs, tensor by tensor: the norm of the difference over the norm. NaN if
    `one` is not finite, which shows nothing of the other; infinite if the other alone is not. Reads the device."""
    if isinstance(one, torch.Tensor):
        norm = float(one.float().norm())
        if not math.isfinite(norm):
            return math.nan
        apart = float((one.float() - other.float()).norm())
        return (apart / norm if norm else apart) if math.isfinite(apart) else math.inf
    pairs: list[tuple[Any, Any]] = []
    if isinstance(one, Mapping):
        pairs = [(one[name], other[name]) for name in one]
    elif isinstance(one, list | tuple):
        pairs = list(zip(one, other, strict=True))
    differences = [largest_difference(*pair) for pair in pairs]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


def _has_rows(tensor: torch.Tensor, layout: Layout) -> bool:
    """Return whether the first dimension counts images. Where those are a list's items, only a vector's may, such as
    that of the time steps."""
    return tensor.dim() > 0 and tensor.shape[0] == layout.rows and (not layout.listed or tensor.dim() == 1)


def _has_items(value: Any, layout: Layout) -> bool:
    """Return whether a value is a list with a tensor, or a list of tensors, for each image."""
    return layout.listed and isinstance(value, list) and len(value) == layout.rows and _holds_tensor(value)


def _is_repeated_value(value: Any, layout: Layout) -> bool:
    """Return whether a list has a plain value for each row, all alike. They must be equal in all passes: a denoiser may
    read the first."""
    return (
        isinstance(value, list)
        and len(value) == layout.rows
        and not _holds_tensor(value)
        and all(item == value[0] for item in value)
    )


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor | Mapping)


def _plain_value(value: Any) -> Hashable:
    """Return a value with the name of its type: both must be equal in all passes. Raises Unmergeable for an object that
    has no plain value."""
    if isinstance(value, list | tuple):
        return tuple(_plain_value(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        return type(value).__name__, value
    raise Unmergeable(f"it takes a {type(value).__name__}")
