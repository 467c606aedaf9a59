"""The context of a model, as each server's list of models tells it."""

from typing import Any

import pytest

from server.backends.upstream_contexts import _context

CARDS: tuple[tuple[str, dict[str, Any], int | None], ...] = (
    ("vLLM", {"max_model_len": 32768, "parent": None}, 32768),
    ("SGLang", {"owned_by": "sglang", "max_model_len": 40960}, 40960),
    ("llama.cpp", {"meta": {"n_vocab": 151936, "n_ctx_train": 40960, "n_params": 7}}, 40960),
    ("llama.cpp, its slot", {"meta": {"n_ctx": 8192, "n_ctx_train": 40960}}, 8192),
    ("LM Studio", {"max_context_length": 131072, "loaded_context_length": 4096}, 4096),
    ("OpenRouter", {"context_length": 131072, "top_provider": {"context_length": 65536}}, 131072),
    ("Groq", {"context_window": 131072, "max_completion_tokens": 32768}, 131072),
    ("Mistral", {"max_context_length": 32768, "capabilities": {"vision": False}}, 32768),
    ("Copilot", {"capabilities": {"limits": {"max_context_window_tokens": 128000}}}, 128000),
    ("OpenAI", {"created": 1, "owned_by": "openai"}, None),
    ("a null", {"max_model_len": None}, None),
    ("a text", {"max_model_len": "many", "context_length": True}, None),
)


@pytest.mark.parametrize(("card", "context"), [pytest.param(*row[1:], id=row[0]) for row in CARDS])
def test_a_context_is_found_by_any_servers_name_for_it(card: dict[str, Any], context: int | None) -> None:
    others: list[dict[str, Any]] = [{"id": "other", "max_model_len": 7}, {"id": "another"}]
    assert _context([*others, {"id": "m", **card}], "m") == context
    assert _context([{"id": "/models/m.gguf", **card}], "m") == context  # a server with one model
    assert _context(others, "m") is None
    assert _context(None, "m") is None
