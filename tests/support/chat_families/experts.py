"""Families with experts, or with latent attention."""

import transformers as T

from tests.support.chat_families.family import ChatFamily, built

EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
GROUPS = {"n_group": 1, "topk_group": 1, **EXPERTS}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    **GROUPS,
}
INDEXED = {**LATENT, "index_topk": 32, "index_n_heads": 2, "index_head_dim": 16}
SENTENCE = {"eos": "<｜end▁of▁sentence｜>", "bos": "<｜begin▁of▁sentence｜>"}
deepseek_v3 = built(T.DeepseekV3ForCausalLM, T.DeepseekV3Config, first_k_dense_replace=1, **LATENT)

FAMILIES = [
    ChatFamily(
        "qwen3-coder",
        built(
            T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
        ),
        "Qwen3-Coder", "<|im_end|>", writes="function-xml",
    ),
    ChatFamily(
        "llama-4",
        built(
            T.Llama4ForCausalLM, T.Llama4TextConfig, intermediate_size_mlp=96, num_local_experts=2,
            num_experts_per_tok=1, num_hidden_layers=4, attention_chunk_size=64,
        ),
        "llama-4", "<|eot|>", "<|begin_of_text|>", writes="json",
    ),
    ChatFamily(
        "gpt-oss",
        built(
            T.GptOssForCausalLM, T.GptOssConfig, num_local_experts=4, num_experts_per_tok=2, sliding_window=64,
            num_hidden_layers=4, hidden_size=32, intermediate_size=32,
        ),
        "openai-gpt-oss-120b", "<|return|>", "<|startoftext|>", tokenizer="gptoss", writes="harmony", thinks=True,
    ),
    ChatFamily(
        "deepseek-v3.1", deepseek_v3, "deepseek-ai-DeepSeek-V3.1", **SENTENCE, tokenizer="deepseek_v3",
        writes="deepseek", thinks=True,
    ),
    ChatFamily(
        "deepseek-v3.2", built(T.DeepseekV32ForCausalLM, T.DeepseekV32Config, first_k_dense_replace=1, **INDEXED),
        "deepseek-ai-DeepSeek-V3.2", **SENTENCE, writes="deepseek-dsml", thinks=True,
    ),
    ChatFamily("kimi-k2", deepseek_v3, "moonshotai-Kimi-K2", "<|im_end|>", writes="kimi"),
    ChatFamily("kimi-k2-thinking", deepseek_v3, "Kimi-K2-Thinking", "<|im_end|>", writes="kimi", thinks=True),
    ChatFamily(
        "glm-4.6", built(T.Glm4MoeForCausalLM, T.Glm4MoeConfig, first_k_dense_replace=1, **GROUPS), "GLM-4.6",
        "<|user|>", writes="glm", thinks=True,
    ),
    ChatFamily(
        "glm-4.7-flash", built(T.Glm4MoeLiteForCausalLM, T.Glm4MoeLiteConfig, **LATENT), "GLM-4.7-Flash", "<|user|>",
        writes="glm", thinks=True,
    ),
    ChatFamily(
        "minimax-m2", built(T.MiniMaxM2ForCausalLM, T.MiniMaxM2Config, num_local_experts=4, num_experts_per_tok=2),
        "MiniMax-M2", "[e~[", "]~!b[", writes="minimax", thinks=True,
    ),
    ChatFamily(
        "minimax-m3",
        built(
            T.MiniMaxM3VLForCausalLM, T.MiniMaxM3VLTextConfig, num_local_experts=4, num_experts_per_tok=2,
            dense_intermediate_size=64, shared_intermediate_size=32, index_n_heads=2, index_head_dim=16,
            index_block_size=16, index_topk_blocks=2, layer_types=["full_attention", "minimax_m3_sparse"],
        ),
        "MiniMax-M3", "[e~[", "]~!b[", writes="minimax-nested", thinks=True,
    ),
    ChatFamily(
        "solar-open", built(T.SolarOpenForCausalLM, T.SolarOpenConfig, first_k_dense_replace=1, **GROUPS),
        "upstage-Solar-Open-100B", "<|flush|>", "<s>", writes="solar", thinks=True,
    ),
    ChatFamily("kimi-k3", deepseek_v3, "Kimi-K3", "<|end_of_msg|>", writes="kimi-tags", thinks=True),
    ChatFamily("gigachat-3", deepseek_v3, "GigaChat3-10B-A1.8B", "</s>", "<s>", writes="gigachat"),
    ChatFamily(
        "step-3.5",
        built(
            T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
        ),
        "StepFun3.5-Flash", "<|im_end|>", writes="function-xml", thinks=True,
    ),
]  # fmt: skip
