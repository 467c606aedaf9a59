"""The tokenizer: byte-level BPE, so that any text comes back as it went in, cut so that words are easy to copy.

A model this small copies an argument from a message token by token. GPT's cut makes that hard: " Marvin" and "Marvin"
share no token. Here a word's pieces are the same wherever it stands: merges are learned inside words, and a space joins
the first piece last of all, and only before common pieces.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

CONTEXT: Final = 2048
END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
CALL_START: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
MARKS: Final = (END_OF_TEXT, TURN_START, TURN_END, CALL_START, CALL_END)
SPACE: Final = "Ġ"  # a space in the byte-level alphabet

# Digits stand alone, with no space before them: sums are done digit by digit.
CUT_WORDS: Final = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s"
CUT: Final = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"

RESPONSE_TEMPLATE: Final = {  # how transformers reads an answer: `tokenizer.parse_response` and its streaming twin
    "defaults": {"role": "assistant"},
    "start_anchor": f"{TURN_START}assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": rf"\s*{CALL_START}",
            "close": CALL_END,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {
            "close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)",
            "content": "text",
        },
    },
}


def make_tokenizer(texts: Iterable[str], merges: int = 0, spaced: int = 0) -> PreTrainedTokenizerFast:
    """A tokenizer learned from `texts`: bytes, `merges` pieces of words, the `spaced` commonest with a space before.

    Without merges it is bytes alone, which is enough for a test.
    """
    corpus = [piece for text in texts for piece in re.split("|".join(map(re.escape, MARKS)), text)]
    vocabulary, pairs = _learn(corpus, merges)
    for piece in _common_after_space(corpus, vocabulary)[:spaced]:
        vocabulary[SPACE + piece] = len(vocabulary)
        pairs.append((SPACE, piece))
    core = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
    core.pre_tokenizer = _cut(CUT)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
        chat_template=(Path(__file__).parent / "template.jinja").read_text(),
        response_template=RESPONSE_TEMPLATE,
        chat_control_tokens=list(MARKS),
    )
    tokenizer.add_tokens([CALL_START, CALL_END])  # not special: they stay in the text that is parsed
    return tokenizer


def _learn(corpus: list[str], merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary by piece, and the pairs that were merged, first merged first."""
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = _cut(CUT_WORDS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=len(MARKS) + len(alphabet) + merges,
        initial_alphabet=alphabet,
        special_tokens=list(MARKS),
        show_progress=False,
    )
    learner.train_from_iterator(corpus, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def _common_after_space(corpus: list[str], vocabulary: dict[str, int]) -> list[str]:
    """The whole words and signs of the vocabulary that follow a space, the commonest first."""
    counts = Counter(word for text in corpus for word in re.findall(r"(?<= )(?:[A-Za-z]+|[^\w\s]+)", text))
    return [word for word, _ in counts.most_common() if word in vocabulary]


def _cut(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
