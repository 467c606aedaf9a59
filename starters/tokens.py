"""The image starters' tokenizers: byte-level BPE trained on captions and instructions."""

import json
from collections.abc import Iterable
from typing import Final

from tokenizers import AddedToken, Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer, Qwen2Tokenizer

Merges = list[tuple[str, str]]

START, END = "<|startoftext|>", "<|endoftext|>"
LENGTH: Final = 40  # tokens of a prompt. FLUX.2's pipeline attends to padding too, so more would cost time

# The last four positions of an alpha prompt are padding, and these four end a beta prompt. Each attends to the prompt
# and is trained to encode one part of it.
SLOTS: Final = ("scenery", "left", "centre", "right")
CHANGE: Final = "change"  # what an instruction does
SLOT_TOKENS: Final = tuple(f"<|{name}|>" for name in (CHANGE, *SLOTS))
TEMPLATE: Final = "{% for m in messages %}{{ m['content'] | lower }}{% endfor %}" + "".join(SLOT_TOKENS)


def clip_tokenizer(texts: Iterable[str] = (), pieces: int = 0, length: int = 77) -> CLIPTokenizer:
    """In CLIP's format. Without texts it has byte tokens alone."""
    alphabet = sorted(ByteLevel.alphabet())
    names = [*alphabet, *(f"{letter}</w>" for letter in alphabet)]
    merges: Merges = []
    if pieces:
        bare = CLIPTokenizer({name: i for i, name in enumerate([*names, START, END])}, [])
        names, merges = _train_bpe(bare.backend_tokenizer, texts, names, pieces, suffix="</w>")
    return CLIPTokenizer({name: i for i, name in enumerate([*names, START, END])}, merges, model_max_length=length)


def qwen_tokenizer(texts: Iterable[str] = (), pieces: int = 0, length: int = 512) -> Qwen2Tokenizer:
    """In Qwen's format. Its template appends the slot tokens to the prompt; long prompts are cut at the start."""
    names = sorted(ByteLevel.alphabet())
    merges: Merges = []
    if pieces:
        bare = Qwen2Tokenizer({name: i for i, name in enumerate([*names, END])}, [])
        names, merges = _train_bpe(bare.backend_tokenizer, texts, names, pieces, suffix="")
    tokenizer = Qwen2Tokenizer(
        {name: i for i, name in enumerate([*names, END])}, merges, model_max_length=length, truncation_side="left"
    )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SLOT_TOKENS])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _train_bpe(
    bare: Tokenizer, texts: Iterable[str], alphabet: list[str], pieces: int, suffix: str
) -> tuple[list[str], Merges]:
    """The names of all tokens, the alphabet first, and the merges."""
    trained = Tokenizer(models.BPE(end_of_word_suffix=suffix, continuing_subword_prefix=""))
    trained.normalizer, trained.pre_tokenizer = bare.normalizer, bare.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + pieces, initial_alphabet=alphabet, end_of_word_suffix=suffix, show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [(first, second) for first, second in model["merges"]]
    known = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    return list(known), merges
