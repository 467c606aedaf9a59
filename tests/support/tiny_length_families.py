"""Further families of untrained chat checkpoints whose configs name small lengths: by their names, the class of
transformers, that of its config where it has another name, and what the config says."""

from collections.abc import Mapping
from typing import Any

HEADS: dict[str, Any] = {"num_key_value_heads": 2}
SIZED: dict[str, Any] = {**HEADS, "head_dim": 16}
WINDOW: dict[str, Any] = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
MOSTLY: dict[str, Any] = {
    "num_hidden_layers": 4, "sliding_window": 24, "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
ROUTED: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}  # fmt: skip
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
DEFAULT: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
SCALED: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 120,
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    **YARN, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
GEMMA4: dict[str, Any] = {**SIZED, "global_head_dim": 32, "sliding_window": 24}

Described = Mapping[str, tuple[str, str, dict[str, Any]]]
TOGETHER: Described = {
    "llama3": ("Llama", "", {**HEADS, "rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", "", {**HEADS, "rope_parameters": SCALED}),
    "qwen2-window": ("Qwen2", "", {**HEADS, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3-yarn": ("Qwen3", "", {**SIZED, "rope_parameters": YARN}),
    "mistral-window": ("Mistral", "", {**HEADS, "sliding_window": 24}),
    "ministral": ("Ministral", "", {**SIZED, **WINDOW}),
    "gemma2": ("Gemma2", "", {**SIZED, **WINDOW, "query_pre_attn_scalar": 16, "tie_word_embeddings": False}),
    "gemma3-scaled": (
        "Gemma3", "Gemma3TextConfig",
        {**SIZED, **WINDOW, "rope_parameters": {"full_attention": SCALED, "sliding_attention": DEFAULT}},
    ),
    "gemma4": (
        "Gemma4", "Gemma4TextConfig",
        {
            **GEMMA4, "num_hidden_layers": 4, "layer_types": WINDOW["layer_types"] * 2, "num_kv_shared_layers": 2,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512,
        },
    ),
    "gemma4-experts": (
        "Gemma4", "Gemma4TextConfig",
        {
            **GEMMA4, **WINDOW, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
            "num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 32,
        },
    ),
    "phi3-window": ("Phi3", "", {**HEADS, "sliding_window": 24}),
    "cohere2": ("Cohere2", "", {**SIZED, **MOSTLY}),
    "glm4": ("Glm4", "", SIZED),
    "glm4-experts": ("Glm4Moe", "", {**SIZED, **ROUTED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}),
    "olmo2": ("Olmo2", "", HEADS),
    "olmo3": ("Olmo3", "", {**HEADS, **WINDOW, "rope_parameters": YARN}),
    "smollm3": ("SmolLM3", "", {**HEADS, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "granite": ("Granite", "", {**HEADS, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    "exaone4": ("Exaone4", "", {**HEADS, **MOSTLY, "rope_parameters": LLAMA3}),
    "apertus": ("Apertus", "", {**HEADS, "rope_parameters": LLAMA3}),
    "seed-oss": ("SeedOss", "", SIZED),
    "ernie": ("Ernie4_5", "", SIZED),
    "minicpm3": ("MiniCPM3", "", LATENT),
    "mimo": ("MiMoV2Flash", "", {**SIZED, **WINDOW, **ROUTED}),
    "minimax-m2": ("MiniMaxM2", "", {**SIZED, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "deepseek-yarn": (
        "DeepseekV3", "",
        {
            **LATENT, **ROUTED, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "hunyuan-experts": ("HunYuanMoEV1", "", {**SIZED, "num_experts": 2, "moe_topk": 1}),
}  # fmt: skip
ONE_AT_A_TIME: Described = {
    "granite-hybrid": (
        "GraniteMoeHybrid", "",
        {
            **HEADS, **MAMBA, "num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 32,
            "layer_types": ["mamba", "attention"],
        },
    ),
    "falcon-h1": ("FalconH1", "", {**SIZED, **MAMBA, "mamba_n_heads": 4, "mamba_d_ssm": 64}),
    "lfm2-experts": (
        "Lfm2Moe", "", {**HEADS, **EXPERTS, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    ),
    "qwen3-next": ("Qwen3Next", "", {**SIZED, **EXPERTS, **LINEAR, "shared_expert_intermediate_size": 32}),
    "nemotron-h": (
        "NemotronH", "",
        {
            **SIZED, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1,
            "layers_block_type": ["mamba", "attention"],
        },
    ),
}  # fmt: skip
