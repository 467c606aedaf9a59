"""From a job to the sequences that answer it: everything that can be wrong with a request shows here."""

import json
from collections.abc import Callable

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.constraints import Constraint
from pipelines.chat.detokenize import Answer
from pipelines.chat.failures import Refused
from pipelines.chat.grammars import Grammar, grammar_of
from pipelines.chat.output_parser import Reader
from pipelines.chat.prompts import Conversation, encode, fit, template_messages
from pipelines.chat.sampling import Draws
from pipelines.chat.sequence import Request, Sequence
from pipelines.chat.tool_syntax import THINK_BEGIN, THINK_END, Fields
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.images import Failed, Started


def prepare(checkpoint: ChatCheckpoint, job: ChatJob, emit: Callable[[ChatEvent], None]) -> tuple[list[Sequence], int]:
    """One sequence for each choice, and how many messages were dropped. Raises Refused."""
    _check_bias(checkpoint, job)
    grammar = grammar_of(checkpoint.tokens, job, checkpoint.syntax.marks)
    tools = job.tools if job.tool_choice != "none" else ()
    # A model that may think or not should not, where all that it says is prescribed.
    options = {"enable_thinking": False} if grammar and not grammar.has_text else {}
    messages = template_messages(checkpoint, job.messages, job.images)
    prompt = fit(checkpoint, Conversation(messages, tools, options), truncate=job.truncate)
    request = Request(job, checkpoint, prompt.tokens, prompt.inputs, emit, open_choices=job.n)
    beginning = checkpoint.tokenizer.decode(prompt.tokens) if checkpoint.syntax.thinks or tools else ""
    most_new = min(job.max_tokens, checkpoint.context - len(prompt.tokens))
    sequences = [_sequence(request, choice, most_new, grammar, beginning) for choice in range(job.n)]
    return sequences, prompt.dropped_messages


def count(checkpoint: ChatCheckpoint, job: CountJob, emit: Callable[[ChatEvent], None]) -> int:
    """The length of the prompt. Raises Refused."""
    emit(Started())  # from here on the server counts its time: a worker that hangs in it is killed
    messages = template_messages(checkpoint, job.messages, job.images)
    return len(encode(checkpoint, Conversation(messages, job.tools)).tokens)


def _sequence(request: Request, choice: int, most_new: int, grammar: Grammar | None, beginning: str) -> Sequence:
    """`beginning` is the prompt as text, where it matters how the answer begins."""
    job, tokens = request.job, request.checkpoint.tokens
    draws = Draws(job.sampling, job.seed + choice, job.top_logprobs if job.logprobs else None)
    thinks = beginning.rstrip().endswith(THINK_BEGIN)
    begins_after = THINK_END.encode() if thinks and grammar and not grammar.has_text else b""
    constraint = Constraint(tokens, grammar, begins_after) if grammar else None
    answer = _answer(request, choice, beginning)
    return Sequence(request, choice, draws, answer, constraint, most_new, list(request.prompt))


def _answer(request: Request, choice: int, beginning: str) -> Answer:
    job, checkpoint = request.job, request.checkpoint
    calls = bool(job.tools) and job.tool_choice != "none"
    fields = checkpoint.syntax.reading(tools=calls, required=job.tool_choice == "required")
    if set(fields) == {"content"} or not beginning:
        return Answer(choice, checkpoint.tokens, job.stop)
    if not checkpoint.syntax.anchor:
        beginning = THINK_BEGIN if beginning.rstrip().endswith(THINK_BEGIN) else ""
    reader = Reader(fields, checkpoint.syntax.anchor, beginning, list(job.tools))
    most_calls = None if job.parallel_tool_calls else 1
    return Answer(choice, checkpoint.tokens, job.stop, reader, _shown(checkpoint, fields), most_calls)


def _shown(checkpoint: ChatCheckpoint, fields: Fields) -> frozenset[int]:
    """The special tokens that are marks in an answer."""
    patterns = json.dumps(fields, ensure_ascii=False).replace("\\", "")
    return frozenset(token for token, text in checkpoint.tokens.special.items() if text in patterns)


def _check_bias(checkpoint: ChatCheckpoint, job: ChatJob) -> None:
    for token in job.sampling.logit_bias:
        if not 0 <= token < checkpoint.tokens.count:
            message = f"logit_bias names token {token}; this model's tokens are 0 to {checkpoint.tokens.count - 1}."
            raise Refused(Failed("invalid_value", message, param="logit_bias"))
