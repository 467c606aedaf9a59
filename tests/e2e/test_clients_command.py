"""`darkroom clients` on a running server."""

import tomllib
from dataclasses import replace

from tests.support.harness import Server


def test_it_prints_what_works_with_this_server(chat: Server) -> None:
    printed = chat.darkroom("clients", "codex", "--model", "small", "--context", "8192")
    assert printed.returncode == 0, printed.stderr
    file, shell = printed.stdout.removeprefix("# ~/.codex/config.toml\n").split("\n\n# In a shell\n")
    config = tomllib.loads(file)
    assert config["model"] == "small"
    assert config["model_providers"]["darkroom"]["base_url"] == f"{chat.base}/v1"
    assert config["model_context_window"] == 8192
    assert shell == f"export DARKROOM_API_KEY={chat.key}\ncodex\n"
    assert "this machine's own" in printed.stderr
    reached = replace(chat, settings={**chat.settings, "public_urls": "https://box.example/darkroom/"})
    assert "OPENAI_BASE_URL=https://box.example/darkroom/v1 " in reached.darkroom("clients", "openai-sdk").stdout


def test_it_says_what_is_missing(chat: Server) -> None:
    assert chat.darkroom("clients").stdout.splitlines()[0] == "claude-code  Claude Code"
    assert "Known: claude-code, codex," in chat.darkroom("clients", "cursor").stderr
    assert "The model `none` does not exist" in chat.darkroom("clients", "pi", "--model", "none").stderr
    assert "Incorrect API key" in chat.darkroom("clients", "pi", "--key", "sk-own").stderr
    own = chat.new_key("for pi")
    plain = chat.darkroom("clients", "pi", "--model", "plain", "--context", "8192", "--key", own)
    assert '"contextWindow": 8192, "maxTokens": 2048' in plain.stdout
    assert f"DARKROOM_API_KEY={own}" in plain.stdout
    assert "plain calls no tools" in plain.stderr
