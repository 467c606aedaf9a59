"""The tokenizer: lossless byte-level BPE, with a pre-tokenizer that makes words easy to copy.

A model this small copies an argument from a message token by token. GPT's pre-tokenizer makes that hard: " Marvin" and
"Marvin" share no token. Here a word has the same tokens everywhere: merges are learned inside words, and a space is
merged with the first token last of all, and only before common tokens.
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

# Each digit is a token, without a space: sums are done digit by digit.
WORD_PATTERN: Final = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s"
PATTERN: Final = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"

RESPONSE_TEMPLATE: Final = {  # how `tokenizer.parse_response` of transformers reads an answer
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
    """A tokenizer trained on `texts`: bytes, `merges` merged tokens, and the `spaced` most common ones after a space.

    Without merges it has byte tokens alone, which is enough for a test.
    """
    corpus = [piece for text in texts for piece in re.split("|".join(map(re.escape, MARKS)), text)]
    vocabulary, pairs = _learn(corpus, merges)
    for piece in _common_after_space(corpus, vocabulary)[:spaced]:
        vocabulary[SPACE + piece] = len(vocabulary)
        pairs.append((SPACE, piece))
    core = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
    core.pre_tokenizer = _pre_tokenizer(PATTERN)
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
    tokenizer.add_tokens([CALL_START, CALL_END])  # not special: decoded text must contain them
    return tokenizer


def _learn(corpus: list[str], merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary, and the merges in order."""
    trainee = Tokenizer(BPE())
    trainee.pre_tokenizer = _pre_tokenizer(WORD_PATTERN)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=len(MARKS) + len(alphabet) + merges,
        initial_alphabet=alphabet,
        special_tokens=list(MARKS),
        show_progress=False,
    )
    trainee.train_from_iterator(corpus, trainer)
    model = json.loads(trainee.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def _common_after_space(corpus: list[str], vocabulary: dict[str, int]) -> list[str]:
    """The words and signs of the vocabulary that follow a space, most common first."""
    counts = Counter(word for text in corpus for word in re.findall(r"(?<= )(?:[A-Za-z]+|[^\w\s]+)", text))
    return [word for word, _ in counts.most_common() if word in vocabulary]


def _pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
