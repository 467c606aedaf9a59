"""`darkroom clients`: what to paste into a program of others, so that it calls this server."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from server.cli.environment import read_catalog, read_settings
from server.cli.reproduce import KEY_VARIABLE
from server.errors import StartError

SHELL: Final = "In a shell"
# Words of the texts below, each in place of a value: the server's address, a key, the chat model and its context in
# tokens; of these what an answer may have, what is left for the messages, and from where on Codex shortens them; the
# share of the million tokens of Gemini's own models; and an image model.
WORDS: Final = re.compile(r"\b(ADDRESS|KEY|MODEL|CONTEXT|ANSWER|MESSAGES|SHORTEN|SHARE|IMAGES)\b")
MOST_ANSWER: Final = 32_000  # as many as the agents ask for where nothing tells them
GEMINI_CONTEXT: Final = 2**20
CODEX_KEEPS: Final = 36_000  # 20,000 of the user's, and its own: a limit below makes it shorten without end


@dataclass(frozen=True, slots=True)
class Step:
    """A text, the place that it goes to, and the language that it is in."""

    place: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Client:
    """A program, and how it is set up."""

    title: str
    steps: tuple[Step, ...]
    note: str = ""

    @property
    def words(self) -> set[str]:
        """Return the words that its texts need values for."""
        return {word for step in self.steps for word in WORDS.findall(step.text)}


CLIENTS: Final = {
    "claude-code": Client(
        "Claude Code",
        (
            Step(SHELL, "sh", """\
export ANTHROPIC_BASE_URL=ADDRESS ANTHROPIC_AUTH_TOKEN=KEY
export ANTHROPIC_MODEL=MODEL ANTHROPIC_DEFAULT_HAIKU_MODEL=MODEL
export CLAUDE_CODE_MAX_CONTEXT_TOKENS=CONTEXT CLAUDE_CODE_MAX_OUTPUT_TOKENS=ANSWER
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude"""),
        ),
        "It keeps to the context that you tell it only if it does not know the model's name: an alias such as "
        "`claude-sonnet-5` has the context of the hosted model.",
    ),
    "codex": Client(
        "Codex CLI",
        (
            Step("~/.codex/config.toml", "toml", """\
model = "MODEL"
model_provider = "darkroom"
model_context_window = CONTEXT
model_auto_compact_token_limit = SHORTEN

[model_providers.darkroom]
name = "Darkroom"
base_url = "ADDRESS/v1"
env_key = "DARKROOM_API_KEY"
wire_api = "responses\""""),
            Step(SHELL, "sh", "export DARKROOM_API_KEY=KEY\ncodex"),
        ),
        "It shortens a session before the next prompt, by what the last answer took: `model_auto_compact_token_limit` "
        "leaves room for that prompt. What it keeps then has up to 36,000 tokens: give it a context of 48,000 or more. "
        "Past the context a session mostly stays refused: at the error, Codex takes the tokens of all its earlier "
        "answers off the context, and shortens only if nine tenths are left.",
    ),
    "gemini-cli": Client(
        "Gemini CLI",
        (
            Step("~/.gemini/settings.json", "json", """\
{
  "security": { "auth": { "selectedType": "gemini-api-key" } },
  "model": { "name": "MODEL", "compressionThreshold": SHARE }
}"""),
            Step(SHELL, "sh", "export GOOGLE_GEMINI_BASE_URL=ADDRESS GEMINI_API_KEY=KEY\ngemini"),
        ),
        "It takes every model for one of a million tokens. `compressionThreshold` is a share of these.",
    ),
    "qwen-code": Client(
        "Qwen Code",
        (
            Step("~/.qwen/settings.json", "json", """\
{
  "security": { "auth": { "selectedType": "openai" } },
  "model": { "name": "MODEL" },
  "modelProviders": {
    "openai": [
      {
        "id": "MODEL",
        "baseUrl": "ADDRESS/v1",
        "envKey": "DARKROOM_API_KEY",
        "generationConfig": { "contextWindowSize": CONTEXT, "samplingParams": { "max_tokens": ANSWER } }
      }
    ]
  }
}"""),
            Step(SHELL, "sh", "export DARKROOM_API_KEY=KEY\nqwen"),
        ),
    ),
    "opencode": Client(
        "opencode",
        (
            Step("~/.config/opencode/opencode.json", "json", """\
{
  "model": "darkroom/MODEL",
  "provider": {
    "darkroom": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Darkroom",
      "options": { "baseURL": "ADDRESS/v1", "apiKey": "{env:DARKROOM_API_KEY}" },
      "models": { "MODEL": { "limit": { "context": CONTEXT, "output": ANSWER } } }
    }
  }
}"""),
            Step(SHELL, "sh", "export DARKROOM_API_KEY=KEY\nopencode"),
        ),
        "Without `limit` it never shortens a session.",
    ),
    "pi": Client(
        "pi",
        (
            Step("~/.pi/agent/models.json", "json", """\
{
  "providers": {
    "darkroom": {
      "baseUrl": "ADDRESS/v1",
      "api": "openai-completions",
      "apiKey": "$DARKROOM_API_KEY",
      "models": [{ "id": "MODEL", "contextWindow": CONTEXT, "maxTokens": ANSWER }]
    }
  }
}"""),
            Step(SHELL, "sh", "export DARKROOM_API_KEY=KEY\npi --provider darkroom --model MODEL"),
        ),
    ),
    "cline": Client(
        "Cline",
        (
            Step("~/.cline/data/settings/providers.json", "json", """\
{
  "version": 1,
  "lastUsedProvider": "openai-compatible",
  "providers": {
    "openai-compatible": {
      "settings": {
        "provider": "openai-compatible",
        "apiKey": "KEY",
        "model": "MODEL",
        "baseUrl": "ADDRESS/v1",
        "contextWindow": CONTEXT,
        "maxTokens": ANSWER
      },
      "updatedAt": "2026-01-01T00:00:00.000Z",
      "tokenSource": "manual"
    }
  }
}"""),
            Step(SHELL, "sh", "cline"),
        ),
        "In an editor: the provider *OpenAI Compatible*, with the same address, key, model and *Context Window Size*.",
    ),
    "continue": Client(
        "Continue",
        (
            Step("~/.continue/config.yaml", "yaml", """\
name: Local
version: 1.0.0
schema: v1
models:
  - name: Darkroom
    provider: openai
    model: MODEL
    apiBase: ADDRESS/v1
    apiKey: KEY
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: CONTEXT
      maxTokens: ANSWER"""),
            Step(SHELL, "sh", "cn --config ~/.continue/config.yaml"),
        ),
        "Editors read the same file.",
    ),
    "copilot": Client(
        "Copilot CLI",
        (
            Step(SHELL, "sh", """\
export COPILOT_PROVIDER_BASE_URL=ADDRESS/v1 COPILOT_PROVIDER_API_KEY=KEY COPILOT_MODEL=MODEL
export COPILOT_PROVIDER_MAX_PROMPT_TOKENS=MESSAGES COPILOT_PROVIDER_MAX_OUTPUT_TOKENS=ANSWER
export COPILOT_OFFLINE=true
copilot"""),
        ),
        "The last variable keeps it from asking GitHub's servers.",
    ),
    "aider": Client(
        "aider",
        (
            Step("~/.aider.model.metadata.json", "json", """\
{
  "openai/MODEL": {
    "max_input_tokens": MESSAGES,
    "max_output_tokens": ANSWER,
    "litellm_provider": "openai",
    "mode": "chat"
  }
}"""),
            Step(SHELL, "sh", """\
export OPENAI_API_BASE=ADDRESS/v1 OPENAI_API_KEY=KEY
aider --model openai/MODEL"""),
        ),
    ),
    "open-webui": Client(
        "Open WebUI",
        (
            Step(SHELL, "sh", """\
export OPENAI_API_BASE_URL=ADDRESS/v1 OPENAI_API_KEY=KEY
export ENABLE_IMAGE_GENERATION=true IMAGE_GENERATION_ENGINE=openai IMAGE_GENERATION_MODEL=IMAGES
export IMAGES_OPENAI_API_BASE_URL=ADDRESS/v1 IMAGES_OPENAI_API_KEY=KEY
open-webui serve"""),
        ),
        "It has no setting for the context of such a server's models.",
    ),
    "librechat": Client(
        "LibreChat",
        (
            Step("librechat.yaml", "yaml", """\
version: 1.2.8
endpoints:
  custom:
    - name: Darkroom
      baseURL: ADDRESS/v1
      apiKey: ${DARKROOM_API_KEY}
      models:
        default: [MODEL]
        fetch: true
modelSpecs:
  list:
    - name: darkroom
      label: Darkroom
      preset:
        endpoint: Darkroom
        model: MODEL
        maxContextTokens: CONTEXT"""),
            Step(".env", "sh", "DARKROOM_API_KEY=KEY"),
        ),
    ),
    "n8n": Client(
        "n8n",
        (
            Step("Credentials of the type OpenAI", "text", "API Key: KEY\nBase URL: ADDRESS/v1"),
            Step("The node OpenAI Chat Model", "text", "Model, By ID: MODEL"),
            Step("The node OpenAI, Generate an Image", "text", "Model, By ID: IMAGES"),
        ),
        "Under an *AI Agent*, *Use Responses API* may be on.",
    ),
    "openai-sdk": Client(
        "OpenAI's SDKs",
        (
            Step(SHELL, "sh", "export OPENAI_BASE_URL=ADDRESS/v1 OPENAI_API_KEY=KEY"),
            Step("Python", "python", """\
from openai import OpenAI

answer = OpenAI().chat.completions.create(model="MODEL", messages=[{"role": "user", "content": "Hello"}])"""),
        ),
    ),
}  # fmt: skip


def values_of(address: str, key: str, model: str, context: int | None, images: str) -> dict[str, str]:
    """Return what each word of the texts stands for; without a context, not those that follow from it."""
    values = {"ADDRESS": address, "KEY": key, "MODEL": model, "IMAGES": images}
    if context is not None:
        answer = min(MOST_ANSWER, context // 4)
        share = f"{0.7 * (context - answer) / GEMINI_CONTEXT:.5f}"
        values |= {"CONTEXT": str(context), "ANSWER": str(answer), "MESSAGES": str(context - answer), "SHARE": share}
        values["SHORTEN"] = str(max(context - answer, min(CODEX_KEEPS, context * 9 // 10)))
    return values


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with values for its words. Raises KeyError for a word without one."""
    return WORDS.sub(lambda found: values[found[0]], text)


def clients(
    name: Annotated[str | None, typer.Argument(help="The program. Without it: the names of all.")] = None,
    model: Annotated[str | None, typer.Option(help="The chat model, or an alias. Default: the catalog's.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar=KEY_VARIABLE, help="The key's secret. Default: the one that a new server made.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="The model's context in tokens, where the server does not know it.")
    ] = None,
) -> None:
    """Print what to paste into an agent or another program, so that it calls the running server: its address, a key, a
    model, and how long that one's context is."""
    if name is None:
        width = max(map(len, CLIENTS))
        typer.echo("\n".join(f"{each:{width}}  {client.title}" for each, client in CLIENTS.items()))
        return
    if (client := CLIENTS.get(name)) is None:
        raise StartError(f"{name!r} is not known here. Known: {', '.join(CLIENTS)}. `openai-sdk` suits most others.")
    from server.cli.admin_client import request
    from server.secret_files import read_secret

    settings = read_settings()
    catalog, own = read_catalog(settings), settings.home / "dev-key"
    secret = key or (read_secret(own) if own.exists() else None)
    if secret is None:
        raise StartError(
            f"Give the secret of a key with --key, or in {KEY_VARIABLE}: `darkroom keys create` makes one."
        )
    chosen = model or catalog.chat.default
    if chosen is None:
        raise StartError("The catalog has no chat model.")
    card = request(settings, "GET", f"/v1/models/{quote(chosen, safe='')}", secret=secret).json()
    values = values_of(
        settings.public_urls[0].rstrip("/") if settings.public_urls else settings.local_url,
        secret,
        chosen,
        context or card.get("max_model_len"),
        catalog.default or "IMAGES",  # the word stays where no image model is the default
    )
    if missing := client.words - values.keys():
        raise StartError(
            f"The server does not know how long the context of {card['id']} is, which these settings need "
            f"({', '.join(sorted(missing))}). Give it: --context TOKENS."
        )
    typer.echo("\n\n".join(f"# {step.place}\n{fill(step.text, values)}" for step in client.steps))
    for note in _notes(client, card, values):
        typer.echo(note, err=True)


def _notes(client: Client, card: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person should know beside the settings."""
    if client.note:
        yield client.note
    if card["type"] != "chat":
        yield f"{card['id']} draws: name a chat model with --model."
    elif card["tools"] is False and client.words & {"CONTEXT", "MESSAGES", "SHARE"}:
        yield f"{card['id']} calls no tools, which an agent needs: name another model with --model."
    if urlsplit(values["ADDRESS"]).hostname in {"127.0.0.1", "::1", "localhost"}:
        yield "The address is this machine's own. Set DARKROOM_PUBLIC_URLS to the one that other machines have for it."
