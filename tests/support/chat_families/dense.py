"""Families whose layers are attention and a feed-forward network."""

import transformers as T

from tests.support.chat_families.family import ChatFamily, built

ROLES = "<|start_of_role|>"
PHI = {"eos": "<|end|>", "bos": "<|endoftext|>"}
WINDOWS = {"num_hidden_layers": 4, "sliding_window": 64}
LONGROPE = {
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 1.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.5, 3.0, 6.0, 12.0, 20.0, 32.0, 40.0],
    },
}
GEMMA_WINDOWS = {
    "num_hidden_layers": 6,
    "sliding_window": 64,
    "hidden_size": 32,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}


def gemma4(tokenizer: T.PreTrainedTokenizerFast) -> T.PreTrainedModel:
    """Build Gemma 4, whose per-layer embeddings have a vocabulary too."""
    own = {
        **GEMMA_WINDOWS, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": (len(tokenizer) + 63) // 64 * 64,
    }  # fmt: skip
    return built(T.Gemma4ForCausalLM, T.Gemma4TextConfig, **own)(tokenizer)


gemma4.__name__ = "Gemma4ForCausalLM"

FAMILIES = [
    ChatFamily(
        "qwen2.5", built(T.Qwen2ForCausalLM, T.Qwen2Config), "Qwen-Qwen2.5-7B-Instruct", "<|im_end|>", writes="hermes"
    ),
    ChatFamily(
        "qwen3", built(T.Qwen3ForCausalLM, T.Qwen3Config, tie_word_embeddings=True), "tokenizer", "<|im_end|>",
        tokenizer="qwen3", writes="hermes", thinks=True,
    ),
    ChatFamily(
        "qwq", built(T.Qwen2ForCausalLM, T.Qwen2Config), "Qwen-QwQ-32B", "<|im_end|>", writes="hermes", thinks=True
    ),
    ChatFamily(
        "llama-3.1", built(T.LlamaForCausalLM, T.LlamaConfig, tie_word_embeddings=True),
        "meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>", "<|begin_of_text|>", tokenizer="llama3_1", writes="json",
    ),
    ChatFamily(
        "llama-3.2", built(T.LlamaForCausalLM, T.LlamaConfig), "meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>",
        "<|begin_of_text|>", writes="json",
    ),
    ChatFamily(
        "llama-3.3", built(T.LlamaForCausalLM, T.LlamaConfig), "meta-llama-Llama-3.3-70B-Instruct", "<|eot_id|>",
        "<|begin_of_text|>", writes="json",
    ),
    ChatFamily(
        "functionary-3.2", built(T.LlamaForCausalLM, T.LlamaConfig), "meetkai-functionary-medium-v3.2", "<|eot_id|>",
        "<|begin_of_text|>", writes="functionary",
    ),
    ChatFamily(
        "hermes-3", built(T.LlamaForCausalLM, T.LlamaConfig), "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "<|im_end|>", "<|begin_of_text|>", writes="hermes",
    ),
    ChatFamily(
        "gemma-2", built(T.Gemma2ForCausalLM, T.Gemma2Config, sliding_window=64, query_pre_attn_scalar=16),
        "google-gemma-2-2b-it", "<end_of_turn>", "<bos>",
    ),
    ChatFamily(
        "gemma-3", built(T.Gemma3ForCausalLM, T.Gemma3TextConfig, **GEMMA_WINDOWS), "tokenizer", "<end_of_turn>",
        "<bos>", tokenizer="gemma3",
    ),
    ChatFamily("gemma-4", gemma4, "google-gemma-4-31B-it", "<turn|>", "<bos>", writes="gemma4", thinks=True),
    ChatFamily(
        "mistral-nemo", built(T.MistralForCausalLM, T.MistralConfig, sliding_window=None),
        "mistralai-Mistral-Nemo-Instruct-2407", "</s>", "<s>", writes="mistral-list",
    ),
    ChatFamily(
        "mistral-small-3.2", built(T.MistralForCausalLM, T.MistralConfig, sliding_window=None),
        "Mistral-Small-3.2-24B-Instruct-2506", "</s>", "<s>", writes="mistral-call-id",
    ),
    ChatFamily(
        "devstral", built(T.MistralForCausalLM, T.MistralConfig, sliding_window=None),
        "unsloth-mistral-Devstral-Small-2507", "</s>", "<s>", writes="mistral-args",
    ),
    ChatFamily(
        "ministral-3", built(T.Ministral3ForCausalLM, T.Ministral3Config),
        "mistralai-Ministral-3-14B-Reasoning-2512", "</s>", "<s>", writes="mistral-args", thinks=True,
    ),
    ChatFamily(
        "phi-3.5-mini", built(T.Phi3ForCausalLM, T.Phi3Config, **LONGROPE), "microsoft-Phi-3.5-mini-instruct", **PHI
    ),
    ChatFamily(
        "phi-4-mini", built(T.Phi3ForCausalLM, T.Phi3Config, **LONGROPE), "phi-4-mini", **PHI, writes="phi4"
    ),
    ChatFamily(
        "r1-distill-llama", built(T.LlamaForCausalLM, T.LlamaConfig), "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", writes="deepseek-r1", thinks=True,
    ),
    ChatFamily(
        "granite-3.3", built(T.GraniteForCausalLM, T.GraniteConfig), "ibm-granite-granite-3.3-2B-Instruct",
        "<|end_of_text|>", writes="granite3",
    ),
    ChatFamily(
        "smollm3", built(T.SmolLM3ForCausalLM, T.SmolLM3Config), "smollm3", "<|im_end|>", writes="hermes", thinks=True
    ),
    ChatFamily(
        "seed-oss", built(T.SeedOssForCausalLM, T.SeedOssConfig), "ByteDance-Seed-OSS", "<seed:eos>", "<seed:bos>",
        writes="seed", thinks=True,
    ),
    ChatFamily(
        "command-r7b",
        built(
            T.Cohere2ForCausalLM, T.Cohere2Config, num_hidden_layers=4, sliding_window=64,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
        ),
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", writes="command-r7b",
        thinks=True,
    ),
    ChatFamily(
        "apertus", built(T.ApertusForCausalLM, T.ApertusConfig), "Apertus-8B-Instruct", "<|assistant_end|>", "<s>",
        writes="apertus", thinks=True,
    ),
    ChatFamily(
        "olmo-3", built(T.Olmo3ForCausalLM, T.Olmo3Config, **WINDOWS), "olmo-3", "<|im_end|>", writes="function-calls"
    ),
    ChatFamily(
        "exaone-4", built(T.Exaone4ForCausalLM, T.Exaone4Config, sliding_window_pattern=4, **WINDOWS), "exaone-4",
        "[|endofturn|]", writes="hermes", thinks=True,
    ),
    ChatFamily(
        "hunyuan-dense", built(T.HunYuanDenseV1ForCausalLM, T.HunYuanDenseV1Config), "tencent-Hy3",
        "<｜hy_eos:opensource｜>", "<｜hy_begin_of_sentence:opensource｜>", writes="hunyuan", thinks=True,
    ),
    ChatFamily(
        "minicpm5", built(T.LlamaForCausalLM, T.LlamaConfig), "openbmb-MiniCPM5-1B", "<|im_end|>", "<s>",
        writes="function-params", thinks=True,
    ),
    ChatFamily(
        "ernie-4.5", built(T.Ernie4_5ForCausalLM, T.Ernie4_5Config), "ernie-4.5", "<|im_end|>", writes="hermes",
        thinks=True,
    ),
]  # fmt: skip
