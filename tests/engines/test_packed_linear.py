"""Packed layers of a CPU: which are packed, and that they compute what they did."""

import copy
import platform

import gguf
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.chat.loading.packed_linear import X86, PackedLinear, pack_linears
from pipelines.chat.model.batching import find_batching
from pipelines.chat.model.four_bit_linear import FourBitLinear
from pipelines.chat.model.kv_pages import PAGE
from pipelines.chat.model.model_runner import Chunk, ModelRunner

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(platform.machine() not in X86, reason="oneDNN packs for x86")


def _llama(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=48, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_bias=True, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 33])
def test_a_packed_model_has_the_logits_of_the_plain_one(tied: bool, rows: int) -> None:
    plain = _llama(tied=tied)
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    layers = [layer for layer in packed.modules() if isinstance(layer, nn.Linear | PackedLinear)]
    assert len(layers) == 2 * 7 + 1
    assert all(isinstance(layer, PackedLinear) for layer in layers)
    tokens = torch.arange(rows * 5).reshape(rows, 5) % 100
    with torch.inference_mode():
        assert torch.allclose(packed(input_ids=tokens).logits, plain(input_ids=tokens).logits, atol=1e-5)
        assert torch.equal(packed.model.embed_tokens.weight, plain.model.embed_tokens.weight)


def _in_four_bits(layer: nn.Linear) -> None:
    kind = gguf.GGMLQuantizationType.Q4_0
    blocks = gguf.quantize(layer.weight.detach().numpy(), kind)
    layer.weight.data = torch.tensor(gguf.dequantize(blocks, kind))


def _four_bit_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            _in_four_bits(layer)
    return model


def test_layers_of_four_bits_stay_so_but_for_the_output() -> None:
    plain = _four_bit_llama()
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    assert sum(isinstance(layer, FourBitLinear) for layer in packed.modules()) == 2 * 7
    assert isinstance(packed.lm_head, PackedLinear)
    prompt, steps = torch.arange(5)[None], torch.arange(5)[:, None]
    with torch.inference_mode():
        assert torch.allclose(packed(input_ids=prompt).logits, plain(input_ids=prompt).logits, atol=1e-5)
        one, whole = packed(input_ids=steps).logits, plain(input_ids=steps).logits
    assert (one - whole).norm() < 0.02 * whole.norm()


@torch.inference_mode()
def test_a_prompts_last_token_alone_is_computed_as_the_whole_prompt() -> None:
    """As behind a prefix from the cache, of which a chat does not know."""
    packed = _four_bit_llama()
    pack_linears(packed)
    batching = find_batching(packed, CPU, 100, 512)
    assert batching.unbatched_reason is None
    runner = ModelRunner(packed, CPU, 100, batching.rules, 512)
    tokens = list(range(1, 2 * PAGE + 2))
    logits = []
    for cut in (0, len(tokens) - 1):
        lease, _ = runner.kv_cache.begin(None, [])
        runner.kv_cache.reserve(lease, len(tokens))
        for start, end in ((0, cut), (cut, len(tokens))):
            if end > start:
                last = runner.prefill([Chunk(tokens[start:end], lease, start, len(tokens))])
        logits.append(last)
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


def test_no_rows_are_no_rows() -> None:
    layer = PackedLinear(nn.Linear(48, 72))
    with torch.inference_mode():
        assert layer(torch.empty(0, 48)).shape == (0, 72)
        assert layer(torch.empty(2, 0, 48)).shape == (2, 0, 72)


def test_a_layer_whose_weight_is_read_stays_as_it_is() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier, self.called, self.coarse = nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 4).bfloat16()

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            weighed = nn.functional.linear(input_ids.float() @ torch.ones(3, 8), self.classifier.weight)
            called: torch.Tensor = self.called(weighed)
            self.coarse(called.bfloat16())
            return called

    model = Router()
    pack_linears(model)
    assert type(model.classifier) is nn.Linear
    assert type(model.coarse) is nn.Linear
    assert isinstance(model.called, PackedLinear)


def test_a_model_that_takes_no_such_pass_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    pack_linears(model)
    assert type(model[0]) is nn.Linear


def test_a_weight_of_a_quantizers_own_class_stays_as_it_is() -> None:
    class Quantized(torch.Tensor):
        """A tensor that says float32, as torchao's do."""

    model = _llama(tied=False)
    layer = model.model.layers[0].mlp.up_proj
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Quantized), requires_grad=False)
    pack_linears(model)
    assert model.model.layers[0].mlp.up_proj is layer
    assert isinstance(model.model.layers[0].mlp.down_proj, PackedLinear)
