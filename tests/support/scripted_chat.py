"""A chat checkpoint whose output is scripted: it calls one tool where that is offered, and answers once it was told.

All else is real: the class, the tokenizer, the published chat template of Qwen3, the engine's parser, its grammars. A
bigram model in the shape of Qwen3 writes the script: attention and the MLP add nothing, so the next token follows from
the last one. The template's last token, one of two marks, chooses what is written.
"""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from starters.chat.tokens import CALL_END, CALL_START, make_tokenizer
from tests.support.chat_templates import FAMILIES

CALL_MARK: Final = "<|calls|>"
ANSWER_MARK: Final = "<|answers|>"
CONTEXT: Final = 2**17  # an agent's first request has 30,000 tokens
MERGES: Final = 2000
CORPUS: Final = Path(__file__).resolve().parents[2] / "docs"
CHOOSE: Final = """
{%- if add_generation_prompt %}{%- set script = namespace(offered=false, told=false) %}
{%- for tool in tools or [] if tool.function.name == NAME %}{%- set script.offered = true %}{%- endfor %}
{%- for message in messages %}{%- if message.role == 'tool' %}{%- set script.told = true %}
{%- elif message.role == 'assistant' %}{%- set script.told = false %}{%- endif %}{%- endfor %}
{{- CALLS if script.offered and not script.told else ANSWERS }}{%- endif %}"""


def make_scripted(folder: Path, name: str, arguments: Mapping[str, Any], answer: str) -> Path:
    """Write the checkpoint: it calls the tool `name` with these arguments, after a thought, and then says `answer`."""
    call = f'{CALL_START}\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n{CALL_END}'
    tokenizer = make_tokenizer([path.read_text() for path in sorted(CORPUS.rglob("*.md"))], MERGES)
    tokenizer.model_max_length = CONTEXT
    tokenizer.response_template = None
    tokenizer.add_tokens([CALL_MARK, ANSWER_MARK], special_tokens=True)
    chains = [(CALL_MARK, f"<think>\nI need {name}.\n</think>\n\n{call}"), (ANSWER_MARK, answer)]
    used: set[str] = set()
    scripts = [[mark, *_pieces(text, used), str(tokenizer.eos_token)] for mark, text in chains]
    tokenizer.add_tokens([piece for script in scripts for piece in script[1:-1]])
    tokenizer.chat_template = _template(name)
    _model(tokenizer, scripts).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _pieces(text: str, used: set[str]) -> list[str]:
    """Cut a text into short pieces, none of which comes twice: the last token alone says what follows."""
    pieces = []
    for part in re.split(f"({CALL_START}|{CALL_END})", text):
        while part:
            length = len(part) if part in {CALL_START, CALL_END} else _length(part, used)
            pieces.append(part[:length])
            assert pieces[-1] not in used, f"{pieces[-1]!r} comes twice"
            used.add(pieces[-1])
            part = part[length:]
    return pieces


def _length(text: str, used: set[str]) -> int:
    """Return the length of a piece that is new, and leaves no rest that is too short to be one."""
    fits = (n for n in range(3, len(text) - 2) if text[:n] not in used)
    return next(fits, len(text))


def _template(name: str) -> str:
    chosen = CHOOSE.replace("NAME", repr(name)).replace("CALLS", repr(CALL_MARK)).replace("ANSWERS", repr(ANSWER_MARK))
    template = FAMILIES["qwen3"]
    assert isinstance(template, str)
    return template + chosen


def _model(tokenizer: PreTrainedTokenizerFast, scripts: list[list[str]]) -> Qwen3ForCausalLM:
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for script in scripts:
            ids = tokenizer.convert_tokens_to_ids(script)
            for last, following in pairwise(ids):
                model.lm_head.weight[following] += embedding[last] / embedding[last].pow(2).mean().sqrt()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
