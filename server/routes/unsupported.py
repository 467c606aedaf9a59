"""Endpoints of OpenAI's API that this server does not have: a 404 that says so, instead of looking like a mistyped
URL."""

from fastapi import APIRouter

from server.http.errors import refuse, refuse_endpoints

router = APIRouter()

ENDPOINTS = {
    "embeddings": "Embeddings are",
    "audio": "Audio (speech synthesis and recognition) is",
    "files": "The files endpoint is",
    "uploads": "The uploads endpoint is",
    "assistants": "The assistants endpoint is",
    "threads": "Threads, a part of assistants, are",
    "vector_stores": "Vector stores, a part of assistants, are",
    "fine_tuning": "Fine-tuning is",
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
}
SERVED = (
    "It serves /v1/images, /v1/chat/completions, /v1/responses, /v1/conversations, /v1/batches, /v1/moderations and "
    "/v1/models."
)
VARIATIONS = (
    "Image variations are not supported by this server: send the image to /v1/images/edits, with a prompt and a "
    "`strength`."
)

refuse_endpoints(router, "/v1", ENDPOINTS, SERVED)
refuse(router, ["/v1/images/variations"], VARIATIONS)
