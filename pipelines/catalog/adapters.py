"""What a LoRA adapter's file says of itself: its rank, and the words that its trainer gave to call it up."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.catalog.weight_headers import BrokenFile, Tensor, read_header

MAX_TRIGGER_WORDS = 8
# Of the layers of kohya, peft, old diffusers (to_q_lora.down, lora_linear_layer.down) and XLabs (qkv_lora1.down).
DOWN = re.compile(r"(\.lora_down|\.lora_A|[._]lora\d*\.down|\.lora_linear_layer\.down)\.weight$")
PHRASES = ("modelspec.trigger_phrase", "trigger_words", "ss_trigger_words")  # keys of metadata


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter. `problem` says why its file can't be read, or that it is no adapter."""

    name: str
    bytes: int
    rank: int | None
    layers: int
    trigger_words: tuple[str, ...]
    problem: str | None = None


def read_adapter(file: Path) -> Adapter:
    """From the header alone. Raises OSError."""
    size = file.stat().st_size
    try:
        header = read_header(file)
    except BrokenFile as error:
        return Adapter(file.stem, size, None, 0, (), str(error))
    down = [tensor for tensor in header.tensors if DOWN.search(tensor.name)]
    problem = None if down else "no LoRA layers are in it"
    return Adapter(file.stem, size, _rank(down), len(down), _trigger_words(header.metadata), problem)


def _rank(down: list[Tensor]) -> int | None:
    """The rank of most layers: a matrix from the layer's inputs to `rank` values."""
    ranks = Counter(tensor.shape[0] for tensor in down if tensor.shape)
    return ranks.most_common(1)[0][0] if ranks else None


def _trigger_words(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """As the trainer wrote them, or else the commonest tags of the pictures that it was trained on."""
    for key in PHRASES:
        if isinstance(phrase := metadata.get(key), str) and phrase.strip():
            return tuple(word.strip() for word in phrase.split(",") if word.strip())[:MAX_TRIGGER_WORDS]
    tags: Counter[str] = Counter()
    try:
        for counts in json.loads(metadata.get("ss_tag_frequency", "{}")).values():
            tags.update({str(tag).strip(): int(count) for tag, count in counts.items()})
    except (ValueError, TypeError, AttributeError):
        return ()
    return tuple(tag for tag, _ in tags.most_common(MAX_TRIGGER_WORDS))
