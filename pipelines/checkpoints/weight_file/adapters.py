"""The facts in an adapter's file: its kind, layers and rank, the reason why it can't be used, and the words that its
trainer gave to call it up."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipelines.checkpoints.errors import BrokenFile
from pipelines.checkpoints.weight_file.header import NO_PICKLES, WEIGHT_FILES, Header, Tensor, pickles_in, read_header

MAX_TRIGGER_WORDS = 8
NO_LAYERS: Final = "no LoRA layers are in it"
# Of the layers of kohya, peft, old diffusers (to_q_lora.down, lora_linear_layer.down) and XLabs (qkv_lora1.down).
DOWN: Final = re.compile(r"(\.lora_down|\.lora_A(\.default)?|[._]lora\d*\.down|\.lora_linear_layer\.down)\.weight$")
WHOLE_NUMBERS: Final = re.compile(r"[IU]\d|BOOL")  # types of tensors
KRONECKER: Final = re.compile(r"\.lokr_w[12](_[ab])?$")
# What other methods of LyCORIS and peft call a tensor of each layer. `diff` is a difference of a layer's whole weights.
OTHER_KINDS: Final = {
    kind: re.compile(rf"\.({name})(\.default)?(\.weight)?$")
    for kind, name in {
        "LoHa": "hada_w1_a", "OFT": "oft_(blocks|diag|R)", "BOFT": "boft_R", "GLoRA": r"a1(?=\.weight)|glora_A",
        "IA3": "on_input|ia3_l", "AdaLoRA": "lora_E", "VeRA": "vera_lambda_b", "HRA": "hra_u", "MiSS": "miss_block",
        "FourierFT": "fourierft_spectrum", "RandLoRA": "randlora_lambda", "VB-LoRA": "vblora_logits_A",
        "DeLoRA": "delora_lambda", "GraLoRA": "gralora_A", "full-weight": "diff|diff_b|w_norm|b_norm",
    }.items()
}  # fmt: skip
BESIDE: Final = ("alpha", "lora_mid.weight", "lora_B.bias", "lora_magnitude_vector", "lora_magnitude_vector.weight")
WEIGHTS: Final = (".weight", ".bias", ".scale")
EMBEDDINGS: Final = "bundle_emb."  # OneTrainer's embeddings beside an adapter: words for prompts, no layers
PHRASES = ("modelspec.trigger_phrase", "trigger_words", "ss_trigger_words")  # keys of metadata
MOST_NAMES: Final = 4  # of weights, in a message


class AdapterTensors(NamedTuple):
    """The tensors of an adapter, by their kind."""

    pairs: Mapping[str, tuple[str, str]]  # low-rank pairs: the names of both factors, by layer
    kronecker: frozenset[str]  # layers of LoKr
    others: Mapping[str, int]  # how many layers of other kinds, which diffusers does not take
    decomposed: bool  # a DoRA by kohya's names, whose magnitudes diffusers drops
    replaced: tuple[str, ...]  # weights of the model itself: norm_q of transformer_blocks.0.attn.norm_q.weight
    unused: tuple[str, ...]  # what belongs to no layer and changes none

    @property
    def kind(self) -> str:
        """Return the kind of adapter as trainers call it; an empty text for a file that is no adapter."""
        if self.decomposed:
            return "DoRA"
        if self.kronecker:
            return "LoKr"
        return "LoRA" if self.pairs else next(iter(self.others), "")

    @property
    def layers(self) -> int:
        """Return the number of layers that the adapter changes."""
        return len(self.pairs) + len(self.kronecker) + sum(self.others.values())

    @property
    def problem(self) -> str | None:
        """Return the reason why no model can be drawn with the adapter as its trainer meant it; None if there is
        none."""
        if self.decomposed:
            return "a DoRA adapter (dora_scale), which would be drawn as a plain LoRA"
        if self.replaced and self.layers:
            return replaces_weights(self.replaced)
        if not self.pairs and not self.kronecker:
            article = "an" if self.kind[:1] in "AIO" else "a"
            return f"{article} {self.kind} adapter: image models take LoRA, and some LoKr" if self.kind else NO_LAYERS
        return None


def replaces_weights(names: Iterable[str]) -> str:
    """Return the reason for refusing an adapter that puts other weights in place of the model's."""
    listed = list(dict.fromkeys(names))
    shown = ", ".join(listed[:MOST_NAMES]) + (", ..." if len(listed) > MOST_NAMES else "")
    return f"it replaces weights of the model ({shown}): a control LoRA needs a control image"


def read_contents(header: Header) -> tuple[AdapterTensors, str | None]:
    """Sort the tensors of a file, and return them with the reason why no model takes it; None if there is none."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    contents = classify_tensors(tensors)
    return contents, contents.problem or _wrong_factors(contents, tensors)


def _wrong_factors(contents: AdapterTensors, tensors: Mapping[str, Tensor]) -> str | None:
    """Return what is wrong with the factors and strengths of the layers, by their tensors; None if nothing is."""
    for layer, (down, up) in contents.pairs.items():
        if whole := next(
            (each.dtype for each in (tensors[down], tensors[up]) if WHOLE_NUMBERS.match(each.dtype)), None
        ):
            return f"its weights are whole numbers ({whole}), which are read by another program: save it as F16"
        inner, outer = tensors[down].shape, tensors[up].shape
        matrices = len(inner) == len(outer) == 2  # a convolution in groups has a part of the rank in each
        if min(len(inner), len(outer)) < 2 or 0 in (*inner, *outer) or (matrices and inner[0] != outer[1]):
            return f"the factors of {layer} have the shapes {inner} and {outer}, which no product is made of"
    for layer in (*contents.pairs, *contents.kronecker):
        alpha = tensors.get(f"{layer}.alpha")
        if alpha is not None and (count := alpha.weights) != 1:
            return f"{layer}.alpha has {count} values, and a layer has one strength"
    return None


def classify_tensors(names: Iterable[str]) -> AdapterTensors:
    """Sort the tensors of a file by their names."""
    left = dict.fromkeys(names)
    pairs = {}
    for down in [name for name in left if DOWN.search(name)]:
        up = _up_name(down)
        if up in left:
            pairs[DOWN.sub("", down) + _number(down)] = down, up
            del left[down], left[up]
    kronecker = frozenset(KRONECKER.sub("", name) for name in left if KRONECKER.search(name))
    others = {kind: len({name for name in left if mark.search(name)}) for kind, mark in OTHER_KINDS.items()}
    for layer in (*pairs, *kronecker):
        for beside in BESIDE:
            left.pop(f"{layer}.{beside}", None)
    left = {name: None for name in left if not KRONECKER.search(name) and not name.endswith(".lokr_t2")}
    decomposed = any(name.endswith(".dora_scale") for name in left)
    foreign = [name for name in left if name.startswith(EMBEDDINGS) or "lora" in name or _is_of_other_kind(name)]
    replaced = [name for name in left if name.endswith(WEIGHTS) and name not in foreign]
    unused = [name for name in left if name not in replaced and not _is_of_other_kind(name)]
    return AdapterTensors(
        pairs,
        kronecker,
        {kind: count for kind, count in others.items() if count},
        decomposed,
        tuple(name.split(".")[-2] for name in replaced),
        tuple(sorted({_unused_kind(name) for name in unused})),
    )


def _up_name(down: str) -> str:
    return down.replace(".lora_down", ".lora_up").replace(".lora_A", ".lora_B").replace(".down.weight", ".up.weight")


def _number(down: str) -> str:
    """Return the number of a layer's pair, an empty text if it has one pair: XLabs has two, for the image's tokens and
    for those of the text."""
    found = re.search(r"[._](lora\d+)\.down\.weight$", down)
    return f".{found[1]}" if found else ""


def _is_of_other_kind(name: str) -> bool:
    return name.endswith((".hada_w1_b", ".hada_w2_a", ".hada_w2_b")) or any(
        mark.search(name) for mark in OTHER_KINDS.values()
    )


def _unused_kind(name: str) -> str:
    """Return the kind of a tensor that is not used, for people."""
    return name.split(".")[0] if name.startswith(EMBEDDINGS) else name.split(".")[-1]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter. `problem` says why its file can't be read, that it is no adapter, or that no model takes it."""

    name: str
    bytes: int
    rank: int | None
    layers: int
    trigger_words: tuple[str, ...]
    problem: str | None = None
    kind: str = "LoRA"


def read_adapters(folder: Path) -> list[Adapter]:
    """Read the facts of all adapters in a folder, sorted by name. Those that are pickles have that as their problem.
    Raises OSError."""
    unread = [
        Adapter(file.stem, file.stat().st_size, None, 0, (), f"{file.name}: {NO_PICKLES}", "")
        for file in pickles_in(folder)
    ]
    return [*map(read_adapter, sorted(folder.glob(WEIGHT_FILES))), *unread]


def read_adapter(file: Path) -> Adapter:
    """Read an adapter's facts from the header of its file alone. Raises OSError."""
    size = file.stat().st_size
    try:
        header = read_header(file)
    except BrokenFile as error:
        return Adapter(file.stem, size, None, 0, (), str(error), "")
    contents, problem = read_contents(header)
    downs = {down for down, _ in contents.pairs.values()}
    rank = _rank([tensor for tensor in header.tensors if tensor.name in downs])
    words = _trigger_words(header.metadata)
    return Adapter(file.stem, size, rank, contents.layers, words, problem, contents.kind)


def _rank(down: list[Tensor]) -> int | None:
    """Return the rank of most layers, None without layers: a matrix goes from a layer's inputs to `rank` values."""
    ranks = Counter(tensor.shape[0] for tensor in down if tensor.shape)
    return ranks.most_common(1)[0][0] if ranks else None


def _trigger_words(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the trigger words as the trainer wrote them, or else the commonest tags of the images that it was trained
    on."""
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
