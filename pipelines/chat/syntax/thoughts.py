"""What surrounds thoughts, by family. Sources: the families' published chat templates and model cards."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The markers around thoughts, and those around the answer behind them."""

    opening: str
    closing: str
    answer_opening: str = ""
    answer_closing: str = ""
    turn: str = ""  # what may stand behind thoughts: the beginning of the next message's header


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
