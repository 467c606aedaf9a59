"""Initial weights that copy: two attention layers that predict the token that followed the last time.

Small models learn to copy late and suddenly, by a head that attends to the previous token, and one in the next layer
that attends to an earlier token whose predecessor is the current one ("induction heads"). Both can be written down.
Training may change them; they are only a better start than random weights.

The first channel of the residual stream is the same for every token, and its last 64 are empty. In the first layer,
head 0 attends one token back by that constant and by rotation alone, and writes what it reads into the empty channels.
In the second layer, heads 0 and 1 compare those channels with the token itself, and copy the token that they find.
"""

import math
from typing import Final

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

EMBEDDING: Final = 0.1  # standard deviation of an embedding
CONSTANT: Final = 0.4
SHARPNESS: Final = 2.0  # of the queries in both layers
PREVIOUS_SCALE: Final = 2.0  # scale of the previous token, against the token itself
COPIED_SCALE: Final = 3.0  # and of the token that is copied
FAST_ROTATIONS: Final = 5  # the number of fast rotations that tell one token back from others


@torch.no_grad()
def init_induction_heads(model: Qwen3ForCausalLM) -> None:
    """Rewrite the first two layers' attention and the embedding, in place."""
    config, rng = model.config, torch.Generator().manual_seed(0)
    head, width = config.head_dim, config.hidden_size
    tokens = slice(1, width - head)  # the channels of an embedding
    basis = _directions(width - head - 1, width - head - 1, rng)
    table = model.get_input_embeddings().weight
    table.normal_(0, EMBEDDING, generator=rng)
    table[:, 0], table[:, width - head :] = CONSTANT, 0
    model.model.norm.weight.fill_(0.8)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    own = torch.zeros(head, width)
    own[: len(basis), tokens] = basis[:head]
    previous = torch.eye(width)[width - head :]

    here, back = _one_back(config)
    first.q_proj.weight[:head], first.k_proj.weight[:head] = 0, 0
    first.q_proj.weight[:head, 0], first.k_proj.weight[:head, 0] = back, here
    first.v_proj.weight[:head], first.o_proj.weight[:, :head] = own, PREVIOUS_SCALE * EMBEDDING * previous.T

    slow = _slow(config)
    for i in range(2):
        part = slice(i * head, (i + 1) * head)
        places = _directions(len(slow), head, rng)
        copied = torch.zeros(head, width)
        copied[:, tokens] = basis[torch.arange(part.start, part.stop) % len(basis)]
        second.q_proj.weight[part], second.k_proj.weight[part] = 0, 0
        second.q_proj.weight[part.start + slow], second.k_proj.weight[part.start + slow] = (
            places @ own,
            places @ previous,
        )
        second.v_proj.weight[part] = copied
        second.o_proj.weight[:, part] = COPIED_SCALE * EMBEDDING * copied.T
    for attention in (first, second):
        attention.q_norm.weight.fill_(SHARPNESS)


def _directions(count: int, width: int, rng: torch.Generator) -> Tensor:
    """Orthonormal directions, [count, width]."""
    basis: Tensor = torch.linalg.qr(torch.randn(width, count, generator=rng))[0]
    return basis.T


def _speeds(config: Qwen3Config) -> Tensor:
    half = config.head_dim // 2
    base = config.rope_parameters["rope_theta"]
    return torch.tensor([base ** (-i / half) for i in range(half)])


def _one_back(config: Qwen3Config) -> tuple[Tensor, Tensor]:
    """A key, and the query that matches it best one token later, [head] each."""
    half = config.head_dim // 2
    key, query = torch.zeros(2 * half), torch.zeros(2 * half)
    for i, speed in enumerate(_speeds(config).tolist()[:FAST_ROTATIONS]):
        key[i], query[i], query[half + i] = 1, math.cos(speed), -math.sin(speed)
    return key, query


def _slow(config: Qwen3Config) -> Tensor:
    """The channels of a head that hardly rotate within a conversation."""
    slow = torch.nonzero(_speeds(config) < 0.006).flatten()
    return torch.cat([slow, slow + config.head_dim // 2])
