"""The starters' tokenizers: bytes, and pieces of words learnt from what is said about scenes."""

import json
from collections.abc import Iterable
from typing import Final

from tokenizers import AddedToken, Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer, Qwen2Tokenizer

Merges = list[tuple[str, str]]

START, END = "<|startoftext|>", "<|endoftext|>"
LENGTH: Final = 40  # tokens of a prompt. FLUX.2's pipeline attends to padding too: more would cost time

# The last four positions of an alpha prompt are padding, and these four end a beta prompt. Each has read the prompt,
# and is taught to hold one part of what it says.
SLOTS: Final = ("scenery", "left", "centre", "right")
CHANGE: Final = "change"  # what an instruction does
QUESTIONS: Final = tuple(f"<|{name}|>" for name in (CHANGE, *SLOTS))
TEMPLATE: Final = "{% for m in messages %}{{ m['content'] | lower }}{% endfor %}" + "".join(QUESTIONS)


def clip_tokenizer(texts: Iterable[str] = (), pieces: int = 0, length: int = 77) -> CLIPTokenizer:
    """In CLIP's format. Without texts it knows bytes alone: any text, and nothing to learn."""
    letters = sorted(ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: Merges = []
    if pieces:
        bare = CLIPTokenizer({name: i for i, name in enumerate([*names, START, END])}, [])
        names, merges = _learn(bare.backend_tokenizer, texts, names, pieces, suffix="</w>")
    return CLIPTokenizer({name: i for i, name in enumerate([*names, START, END])}, merges, model_max_length=length)


def qwen_tokenizer(texts: Iterable[str] = (), pieces: int = 0, length: int = 512) -> Qwen2Tokenizer:
    """In Qwen's format. Its template writes the questions after the prompt; what is too long loses its start."""
    names = sorted(ByteLevel.alphabet())
    merges: Merges = []
    if pieces:
        bare = Qwen2Tokenizer({name: i for i, name in enumerate([*names, END])}, [])
        names, merges = _learn(bare.backend_tokenizer, texts, names, pieces, suffix="")
    tokenizer = Qwen2Tokenizer(
        {name: i for i, name in enumerate([*names, END])}, merges, model_max_length=length, truncation_side="left"
    )
    tokenizer.add_tokens([AddedToken(question, special=True) for question in QUESTIONS])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _learn(
    bare: Tokenizer, texts: Iterable[str], letters: list[str], pieces: int, suffix: str
) -> tuple[list[str], Merges]:
    """The names of all tokens, letters first, and how they are put together."""
    learner = Tokenizer(models.BPE(end_of_word_suffix=suffix, continuing_subword_prefix=""))
    learner.normalizer, learner.pre_tokenizer = bare.normalizer, bare.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=len(letters) + pieces, initial_alphabet=letters, end_of_word_suffix=suffix, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    merges = [(first, second) for first, second in learnt["merges"]]
    known = dict.fromkeys([*letters, *(first + second for first, second in merges)])
    return list(known), merges
