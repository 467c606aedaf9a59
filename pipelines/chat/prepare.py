"""From a job to the sequences that answer it: everything that can be wrong with a request shows here."""

from collections.abc import Callable

from pipelines.chat.answer import Answer
from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.prompts import Refused, encode, fit
from pipelines.chat.request import Request, Sequence
from pipelines.chat.sampling import Draws
from pipelines.chat_types import ChatEvent, ChatJob, CountJob
from pipelines.types import Failed


def prepare(checkpoint: ChatCheckpoint, job: ChatJob, emit: Callable[[ChatEvent], None]) -> tuple[list[Sequence], int]:
    """One sequence for each choice, and how many messages were dropped. Raises Refused."""
    _check_bias(checkpoint, job)
    tools = job.tools if job.tool_choice != "none" else ()
    prompt, dropped = fit(checkpoint, job.messages, tools, truncate=job.truncate)
    request = Request(job, checkpoint, tuple(prompt), emit, open_choices=job.n)
    most_new = min(job.max_tokens, checkpoint.context - len(prompt))
    return [_sequence(request, choice, most_new) for choice in range(job.n)], dropped


def count(checkpoint: ChatCheckpoint, job: CountJob) -> int:
    """The length of the prompt. Raises Refused."""
    return len(encode(checkpoint, job.messages, job.tools))


def _sequence(request: Request, choice: int, most_new: int) -> Sequence:
    job, checkpoint = request.job, request.checkpoint
    draws = Draws(job.sampling, job.seed + choice, job.top_logprobs if job.logprobs else None)
    answer = Answer(choice, checkpoint.tokens, job.stop)
    return Sequence(request, choice, draws, answer, None, most_new, list(request.prompt))


def _check_bias(checkpoint: ChatCheckpoint, job: ChatJob) -> None:
    for token in job.sampling.logit_bias:
        if not 0 <= token < checkpoint.tokens.count:
            message = f"logit_bias names token {token}; this model's tokens are 0 to {checkpoint.tokens.count - 1}."
            raise Refused(Failed("invalid_value", message, param="logit_bias"))
