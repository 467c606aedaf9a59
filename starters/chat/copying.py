"""A start from which copying need not be discovered: two layers of attention that find what came next last time.

Small models learn to copy late and all at once, by a head that looks at the token before, and one in the next layer
that looks for an earlier token whose predecessor is the present one ("induction heads"). Both can be written down.
Training is free to change them; it only starts from weights that are less random than others.

The residual stream's first place is the same for every token, and its last 64 are empty. In the first layer, head 0
looks one token back by that constant and by rotation alone, and writes what it sees into the empty places. In the
second layer, heads 0 and 1 compare those places with the token itself, and hand on the token that they find.
"""

import math
from typing import Final

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

EMBEDDING: Final = 0.1  # spread of an embedding's numbers
CONSTANT: Final = 0.4
SHARPNESS: Final = 2.0  # of the queries in both layers
SEEN: Final = 2.0  # how strongly the token before is written, compared with the token itself
HANDED_ON: Final = 3.0  # and how strongly what was found
BACK: Final = 5  # the fastest rotations tell one token back from others


@torch.no_grad()
def wire_copying(model: Qwen3ForCausalLM) -> None:
    """Rewrite the first two layers' attention and the embedding, in place."""
    config, rng = model.config, torch.Generator().manual_seed(0)
    head, width = config.head_dim, config.hidden_size
    tokens = slice(1, width - head)  # where an embedding lives
    basis = _directions(width - head - 1, width - head - 1, rng)
    table = model.get_input_embeddings().weight
    table.normal_(0, EMBEDDING, generator=rng)
    table[:, 0], table[:, width - head :] = CONSTANT, 0
    model.model.norm.weight.fill_(0.8)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    own = torch.zeros(head, width)
    own[: len(basis), tokens] = basis[:head]
    seen = torch.eye(width)[width - head :]

    here, back = _one_back(config)
    first.q_proj.weight[:head], first.k_proj.weight[:head] = 0, 0
    first.q_proj.weight[:head, 0], first.k_proj.weight[:head, 0] = back, here
    first.v_proj.weight[:head], first.o_proj.weight[:, :head] = own, SEEN * EMBEDDING * seen.T

    slow = _slow(config)
    for i in range(2):
        part = slice(i * head, (i + 1) * head)
        places = _directions(len(slow), head, rng)
        handed_on = torch.zeros(head, width)
        handed_on[:, tokens] = basis[torch.arange(part.start, part.stop) % len(basis)]
        second.q_proj.weight[part], second.k_proj.weight[part] = 0, 0
        second.q_proj.weight[part.start + slow], second.k_proj.weight[part.start + slow] = places @ own, places @ seen
        second.v_proj.weight[part] = handed_on
        second.o_proj.weight[:, part] = HANDED_ON * EMBEDDING * handed_on.T
    for attention in (first, second):
        attention.q_norm.weight.fill_(SHARPNESS)


def _directions(count: int, width: int, rng: torch.Generator) -> Tensor:
    """Directions at right angles, [count, width]."""
    basis: Tensor = torch.linalg.qr(torch.randn(width, count, generator=rng))[0]
    return basis.T


def _speeds(config: Qwen3Config) -> Tensor:
    half = config.head_dim // 2
    base = config.rope_parameters["rope_theta"]
    return torch.tensor([base ** (-i / half) for i in range(half)])


def _one_back(config: Qwen3Config) -> tuple[Tensor, Tensor]:
    """A key, and the query that meets it best one token later, [head] each."""
    half = config.head_dim // 2
    key, query = torch.zeros(2 * half), torch.zeros(2 * half)
    for i, speed in enumerate(_speeds(config).tolist()[:BACK]):
        key[i], query[i], query[half + i] = 1, math.cos(speed), -math.sin(speed)
    return key, query


def _slow(config: Qwen3Config) -> Tensor:
    """The places of a head that hardly turn within a conversation."""
    slow = torch.nonzero(_speeds(config) < 0.006).flatten()
    return torch.cat([slow, slow + config.head_dim // 2])
