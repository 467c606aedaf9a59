"""Chat templates in the form in which families publish theirs, cut down to what a conversation has to fit.

A family is a file, or several: FAMILY.NAME.jinja is one of its named templates.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = ("default", "tool_use", "rag")


def _read(family: str) -> str | dict[str, str]:
    """One template, or several by name."""
    named = {name: FOLDER / f"{family}.{name}.jinja" for name in NAMES}
    if found := {name: file.read_text() for name, file in named.items() if file.is_file()}:
        return found
    return (FOLDER / f"{family}.jinja").read_text()


FAMILIES = {
    family: _read(family)
    for family in (
        "apriel", "command-r7b", "deepseek-r1", "deepseek-v3.1", "ernie-4.5", "exaone-4", "falcon-h1", "gemma-2",
        "gpt-oss", "hermes-3", "kimi-k2", "lfm2", "llama-3.1", "ministral-3", "mistral-nemo", "olmo-3", "phi-4-mini",
        "qwen3", "qwen3-vl", "qwen3.5", "smollm3",
    )
}  # fmt: skip
