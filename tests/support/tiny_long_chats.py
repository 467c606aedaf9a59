"""Untrained chat checkpoints whose configs name small lengths, beyond which they compute otherwise."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import transformers

from starters.chat.tokens import make_tokenizer
from tests.support import tiny_length_families
from tests.support.tiny_chat_checkpoints import SIZES, save

FACTORS = {"short_factor": [1.0] * 8, "long_factor": [3.0 + i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 120, **FACTORS}


def make_phi_longrope(folder: Path) -> Path:
    """Another rotary embedding from 120 tokens on."""
    return _save(folder, "Phi3", num_key_value_heads=2, original_max_position_embeddings=120, rope_parameters=LONGROPE)


def make_phimoe(folder: Path) -> Path:
    """The same, a factor that changes with it, and a window of 24 tokens."""
    rope = {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.2}
    return _save(
        folder, "Phimoe", num_key_value_heads=2, original_max_position_embeddings=120, rope_parameters=rope,
        num_local_experts=2, sliding_window=24,
    )  # fmt: skip


def make_hunyuan(folder: Path) -> Path:
    """A rotary embedding that is called dynamic, and never changes."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 100.0, "factor": 1.0}
    return _save(
        folder, "HunYuanDenseV1", num_key_value_heads=2, head_dim=16, max_position_embeddings=120, rope_parameters=rope
    )


def make_ministral3(folder: Path) -> Path:
    """Scales that grow with the position, beside a window."""
    rope = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 120,
        "llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
    }  # fmt: skip
    return _save(folder, "Ministral3", num_key_value_heads=2, head_dim=16, sliding_window=24, rope_parameters=rope)


def make_llama_longrope(folder: Path) -> Path:
    """The same in a model whose code computes nothing anew where a text becomes long."""
    return _save(folder, "Llama", num_key_value_heads=2, rope_parameters=LONGROPE)


def make_llama_dynamic(folder: Path) -> Path:
    """A rotary embedding that changes with every token beyond the 120th."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    return _save(folder, "Llama", num_key_value_heads=2, max_position_embeddings=120, rope_parameters=rope)


def make_llama4(folder: Path) -> Path:
    """Attention in chunks of 48 tokens, and a scale that steps up every 40."""
    return _save(
        folder, "Llama4", "Llama4TextConfig", num_hidden_layers=4, num_key_value_heads=2, head_dim=16,
        intermediate_size_mlp=64, num_local_experts=2, num_experts_per_tok=1, attention_chunk_size=48,
        attn_temperature_tuning=True, floor_scale=40, attn_scale=0.5, no_rope_layers=[1, 1, 1, 0],
    )  # fmt: skip


def make_gpt_oss(folder: Path) -> Path:
    """Attention sinks, which only eager attention has here, and a window of 24 tokens in every second layer."""
    return _save(
        folder, "GptOss", num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
        sliding_window=24, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip


def make_gemma3(folder: Path) -> Path:
    """A window of 24 tokens in one of two layers."""
    return _save(
        folder, "Gemma3", "Gemma3TextConfig", num_key_value_heads=2, head_dim=16, sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


def make_gemma3n(folder: Path) -> Path:
    """The last two of four layers use the keys and values of those before."""
    return _save(
        folder, "Gemma3n", "Gemma3nTextConfig", num_hidden_layers=4, num_kv_shared_layers=2, num_key_value_heads=2,
        head_dim=16, sliding_window=24, hidden_size_per_layer_input=8, vocab_size_per_layer_input=512, laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4, intermediate_size=[128] * 4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip


def make_deepseek(folder: Path) -> Path:
    """Keys and values of different sizes."""
    return _save(
        folder, "DeepseekV3", num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
        moe_intermediate_size=32, first_k_dense_replace=1, n_shared_experts=1,
    )  # fmt: skip


def make_lfm2(folder: Path) -> Path:
    """Layers with states beside those with keys and values."""
    return _save(folder, "Lfm2", num_key_value_heads=2, layer_types=["conv", "full_attention"])


def make_qwen35(folder: Path) -> Path:
    """Linear attention beside full attention."""
    return _save(
        folder, "Qwen3_5", "Qwen3_5TextConfig", num_key_value_heads=2, head_dim=16, linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip


def _save(folder: Path, family: str, config: str = "", **options: object) -> Path:
    tokenizer = make_tokenizer([])
    ids = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    values = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048, **ids, **SIZES, **options}
    config_class = getattr(transformers, config or f"{family}Config")
    return save(folder, getattr(transformers, f"{family}ForCausalLM"), config_class(**values), tokenizer)


def _family_makers(families: tiny_length_families.Described) -> dict[str, Callable[[Path], Path]]:
    return {
        name: partial(_save, family=family, config=config, **options)
        for name, (family, config, options) in families.items()
    }


TOGETHER: Mapping[str, Callable[[Path], Path]] = {
    "phi-longrope": make_phi_longrope,
    "phimoe": make_phimoe,
    "hunyuan": make_hunyuan,
    "ministral3": make_ministral3,
    "llama4": make_llama4,
    "gpt-oss": make_gpt_oss,
    "gemma3": make_gemma3,
    "gemma3n": make_gemma3n,
    "deepseek": make_deepseek,
    **_family_makers(tiny_length_families.TOGETHER),
}
ONE_AT_A_TIME: Mapping[str, Callable[[Path], Path]] = {
    "llama-longrope": make_llama_longrope,
    "llama-dynamic": make_llama_dynamic,
    "lfm2": make_lfm2,
    "qwen3.5": make_qwen35,
    **_family_makers(tiny_length_families.ONE_AT_A_TIME),
}
