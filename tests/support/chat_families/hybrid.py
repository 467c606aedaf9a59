"""Families some of whose layers keep a state instead of keys and values."""

import transformers as T

from tests.support.chat_families.family import ChatFamily, built

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2}
LINEAR = {
    "num_hidden_layers": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
NEMOTRON = {
    "layers_block_type": ["mamba", "attention", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}

FAMILIES = [
    ChatFamily(
        "qwen3.5", built(T.Qwen3_5ForCausalLM, T.Qwen3_5TextConfig, **LINEAR), "Qwen3.5-4B", "<|im_end|>",
        writes="function-xml", thinks=True,
    ),
    ChatFamily(
        "granite-4-h",
        built(
            T.GraniteMoeHybridForCausalLM, T.GraniteMoeHybridConfig, layer_types=["mamba", "attention"],
            num_local_experts=0, shared_intermediate_size=64, **MAMBA,
        ),
        "ibm-granite-granite-4.0", "<|end_of_text|>", writes="hermes",
    ),
    ChatFamily(
        "lfm2",
        built(T.Lfm2ForCausalLM, T.Lfm2Config, layer_types=["conv", "full_attention"], block_multiple_of=16),
        "LFM2-8B-A1B", "<|im_end|>", "<|startoftext|>", writes="lfm2",
    ),
    ChatFamily(
        "lfm2.5",
        built(T.Lfm2ForCausalLM, T.Lfm2Config, layer_types=["conv", "full_attention"], block_multiple_of=16),
        "LFM2.5-8B-A1B", "<|im_end|>", "<|startoftext|>", writes="lfm2", thoughts="<think>Hm.</think>",
    ),
    ChatFamily(
        "nemotron-3-nano", built(T.NemotronHForCausalLM, T.NemotronHConfig, **NEMOTRON),
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<|im_end|>", writes="function-xml", thinks=True,
    ),
    ChatFamily(
        "falcon-h1",
        built(T.FalconH1ForCausalLM, T.FalconH1Config, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16,
              mamba_d_state=16, mamba_n_groups=1),
        "falcon-h1", "<|im_end|>", writes="hermes",
    ),
]  # fmt: skip
