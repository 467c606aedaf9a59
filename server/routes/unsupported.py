"""Endpoints of the served protocols that this server does not have: a 404 that says so, instead of looking like a
mistyped URL."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from server.errors import NotFound

router = APIRouter()

OF_OPENAI_AND_ANTHROPIC = {
    "embeddings": "Embeddings are",
    "audio": "Audio (speech synthesis and recognition) is",
    "files": "The files endpoint is",
    "uploads": "The uploads endpoint is",
    "assistants": "The assistants endpoint is",
    "threads": "Threads, a part of assistants, are",
    "vector_stores": "Vector stores, a part of assistants, are",
    "batches": "Batches are",
    "fine_tuning": "Fine-tuning is",
    "moderations": "The moderations endpoint is",
    "videos": "Videos are",
    "realtime": "The realtime endpoint is",
    "completions": "Legacy completions are",
    "chat/completions/{id}": "Stored chat completions are",
    "containers": "Containers are",
    "evals": "Evals are",
    "skills": "Skills are",
    "chatkit": "ChatKit is",
    "organization": "The administration of organizations is",
    "projects": "The administration of projects is",
    "content_provenance_checks": "Checks of content provenance are",
    "safety": "The safety endpoint is",
    "live": "The live endpoint is",
    "messages/batches": "Batches of messages are",
}
OF_GOOGLES = {
    "files": "The files endpoint is",
    "cachedContents": "Cached contents are",
    "fileSearchStores": "File search stores are",
    "tunedModels": "Tuned models are",
    "corpora": "Corpora are",
    "batches": "Batches are",
    "operations": "Operations are",
    "interactions": "Interactions are",
    "agents": "Agents are",
    "webhooks": "Webhooks are",
}
# What Google's models do elsewhere. Below /v1/models only these, as a model's name may have a colon of its own.
ACTIONS = (
    "asyncBatchEmbedContent",
    "batchEmbedContents",
    "batchGenerateContent",
    "embedContent",
    "generateAnswer",
    "predict",
    "predictLongRunning",
)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
SERVED = (
    "It serves /v1/images, /v1/chat/completions, /v1/responses, /v1/conversations, /v1/messages, /v1/models and "
    "/v1beta/models."
)
OF_PICTURES = {
    "variations": "Image variations are not supported by this server: send the picture to /v1/images/edits, with a "
    "prompt and a `strength`.",
    "upscale": "Upscaling alone is not supported by this server: a 2K or 4K model redraws a picture larger, at "
    "/v1/images/edits with a `size`, and a low `strength` to stay close to it.",
}
SERVED_BY_MODELS = "Models here take generateContent, streamGenerateContent and countTokens."


def _refusal(message: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise NotFound(message, code="unsupported_endpoint")

    return refuse


for _prefix, _endpoints in (("/v1", OF_OPENAI_AND_ANTHROPIC), ("/v1beta", OF_GOOGLES)):
    for _endpoint, _what in _endpoints.items():
        _refuse = _refusal(f"{_what} not supported by this server. {SERVED}")
        for _path in (f"{_prefix}/{_endpoint}", f"{_prefix}/{_endpoint}/{{rest:path}}"):
            router.add_api_route(_path, _refuse, methods=METHODS, include_in_schema=False)
for _action in ACTIONS:
    _refuse = _refusal(f"'{_action}' is not supported by this server. {SERVED_BY_MODELS}")
    for _prefix in ("/v1", "/v1beta"):
        _path = f"{_prefix}/models/{{model:path}}:{_action}"
        router.add_api_route(_path, _refuse, methods=["POST"], include_in_schema=False)
for _endpoint, _message in OF_PICTURES.items():
    router.add_api_route(f"/v1/images/{_endpoint}", _refusal(_message), methods=METHODS, include_in_schema=False)
