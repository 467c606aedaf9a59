"""The bodies of /v1/batches, as OpenAI's SDKs send and read them."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from server.schemas.base import Listed, Listing
from server.schemas.chat_messages import LenientModel
from server.schemas.responses import Metadata

Endpoint = Literal["/v1/images/generations", "/v1/images/edits", "/v1/chat/completions", "/v1/responses"]


LINES = {"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "array", "items": {"type": "object"}}]}


class BatchBody(LenientModel):
    """POST /v1/batches. The lines are in `input`, as JSONL or as a list, or in a file of the operator's folder, whose
    path in it is the `input_file_id`. Without `endpoint`, each line names its own."""

    endpoint: Endpoint | None = None
    input: Annotated[Any, WithJsonSchema(LINES)] = None
    input_file_id: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    completion_window: Literal["24h"] = "24h"
    metadata: Metadata = Field(default_factory=dict)


class BatchCounts(LenientModel):
    """How many lines there are, how many have an answer, and how many an error."""

    total: int
    completed: int
    failed: int


class BatchObject(Listed):
    """A batch. Its answers are at `output_url`, one line of JSON for each of its own lines, in their order."""

    object: Literal["batch"] = "batch"
    endpoint: str | None
    model: str | None = None
    errors: None = None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Literal["in_progress", "cancelling", "completed", "cancelled", "expired"]
    output_file_id: None = None
    error_file_id: None = None
    output_url: str
    created_at: int
    in_progress_at: int
    expires_at: int
    finalizing_at: None = None
    completed_at: int | None
    failed_at: None = None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str]


class BatchList(Listing[BatchObject]):
    """A page of a key's batches."""
