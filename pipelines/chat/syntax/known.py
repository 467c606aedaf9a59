"""What the table of families says of one, and what surrounds its thoughts. Sources: the families' published chat
templates and model cards."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipelines.chat.syntax.calls import CallFormat


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The markers around thoughts, and those around the answer behind them."""

    opening: str
    closing: str
    answer_opening: str = ""
    answer_closing: str = ""
    turn: str = ""  # what may stand behind thoughts: the beginning of the next message's header
    last_words: str = ""  # what a model of the family is made to think last, when it may think no longer


ALL_THOUGHTS: Final = (
    Thoughts("<|channel>thought\n", "<channel|>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<mm:think>", "</mm:think>"),
    Thoughts("<seed:think>", "</seed:think>"),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>"),
    Thoughts("<|inner_prefix|>", "<|inner_suffix|>"),
    Thoughts("<reasoning>", "</reasoning>"),
    Thoughts("◁think▷", "◁/think▷"),
    Thoughts("<think:opensource>", "</think:opensource>"),  # of Hunyuan 3
    Thoughts("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "", "[END FINAL RESPONSE]"),  # of Apriel
    Thoughts("<think>", "</think>", "<response>", "</response>"),  # of Granite 3
    Thoughts("<think>", "</think>", "<answer>", "</answer>"),  # of Hunyuan
    Thoughts("<think>", "</think>"),
)


QWEN: Final = (
    "Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)
SEED: Final = (
    "<seed:cot_budget_reflect>I have exhausted my token budget, and now I will start answering the question."
    "</seed:cot_budget_reflect>\n"
)
LAST_WORDS: Final[Mapping[str, str]] = {  # by the model's type, as the makers publish them
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_5", "qwen3_5_moe"), f"\n\n{QWEN}"),
    "seed_oss": f"\n{SEED}",
}


@dataclass(frozen=True, slots=True)
class KnownSyntax:
    """A syntax, and what it is known by: all of `marks` in the template, or the model's type."""

    calls: CallFormat
    marks: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None  # which the tokenizer must have, where the type decides; None: the first mark
    thoughts: Thoughts | None = None  # its own; None: found by the template's marks
    marker: str = ""  # a regular expression of what is dropped from texts

    def fits(self, model_type: str, vocabulary: set[str]) -> bool:
        """Return whether models of this type write so, if their tokenizer has these tokens."""
        tokens = (self.calls.opening,) if self.tokens is None else self.tokens
        return model_type in self.model_types and vocabulary.issuperset(tokens)


JSON_CALL: Final = partial(CallFormat, head='{"name": "{name}", "arguments": ', tail="}")
