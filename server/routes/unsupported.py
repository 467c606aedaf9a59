"""OpenAI endpoints that this server does not have: a 404 that says so, instead of looking like a mistyped URL."""

from fastapi import APIRouter, Request

from server.errors import NotFound

router = APIRouter(prefix="/v1")

UNSUPPORTED = {
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
    "images/variations": "Image variations are",
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
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def refuse(request: Request) -> None:
    """404 unsupported_endpoint."""
    path = request.url.path.removeprefix("/v1/")
    whats = (what for name, what in UNSUPPORTED.items() if f"{path}/".startswith(f"{name.removesuffix('/{id}')}/"))
    message = (
        f"{next(whats)} not supported by this server. "
        "It serves /v1/images, /v1/chat/completions, /v1/responses, /v1/conversations, /v1/messages, /v1/models and "
        "/v1beta/models."
    )
    raise NotFound(message, code="unsupported_endpoint")


for _endpoint in UNSUPPORTED:
    router.add_api_route(f"/{_endpoint}", refuse, methods=METHODS, include_in_schema=False)
    router.add_api_route(f"/{_endpoint}/{{rest:path}}", refuse, methods=METHODS, include_in_schema=False)
