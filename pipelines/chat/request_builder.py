"""From a job to the sequences that answer it. Every invalid request is found here."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pipelines.chat.encoding import (
    Conversation,
    template_messages,
    template_use,
    unread_thoughts,
)
from pipelines.chat.failures import InvalidRequest
from pipelines.chat.fitting import count_tokens, fit_prompt
from pipelines.chat.grammars.building import Grammar, build_grammar, has_structured_output
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.preparation import LIMIT_S, TookTooLong
from pipelines.chat.prompts.template_traits import TemplateTraits
from pipelines.chat.prompts.thinking import BUDGET, OFF, asks_to_think, thinking_budget, unused_options
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SamplerState
from pipelines.chat.steps.sequence import Request, Sequence
from pipelines.chat.steps.thinking_budget import ThinkingBudget
from pipelines.chat.syntax.calls import CallFormat, ParserFields
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.output_syntax import marker_text
from pipelines.protocol.chat import Admitted, ChatEvent, ChatJob, CountJob
from pipelines.protocol.images import Failed, Started


def build_sequences(
    checkpoint: ChatCheckpoint, job: ChatJob, emit: Callable[[ChatEvent], None]
) -> tuple[list[Sequence], Admitted]:
    """Return one sequence for each choice, and what is known of the job now. Raises InvalidRequest."""
    _check_bias(checkpoint, job)
    tools = job.tools if job.tool_choice != "none" else ()
    messages = template_messages(checkpoint, job.messages, job.images)
    conversation = Conversation(messages, tools, job.template_options)
    traits = template_use(checkpoint, conversation).traits
    tokens = job.thinking_budget if job.thinking_budget is not None else thinking_budget(job.template_options, traits)
    budget = _budget(checkpoint, tokens)
    unused = unused_options(job.template_options, traits, held=budget is not None)
    options = {**_thinking_options(job, traits), **job.template_options}
    conversation = replace(conversation, options=options)
    asks = asks_to_think(job.template_options)
    # where all of the output is prescribed, a model thinks first if it is asked to, in a syntax that the grammar knows
    if has_structured_output(job) and not (asks and checkpoint.syntax.thoughts):
        conversation = replace(conversation, options={**options, **OFF})
        unused += asks if traits.switch else ()
    prompt = fit_prompt(checkpoint, conversation, truncate=job.truncate)
    prompt_text = checkpoint.tokenizer.decode(prompt.tokens) if checkpoint.syntax.has_regions or tools else ""
    try:
        grammar, constraint = _constrained(checkpoint, job, prompt_text) or (None, None)
    except TookTooLong as error:
        param = "tools" if tools else "response_format"
        message = (
            f"The grammar of '{param}' took longer than {LIMIT_S:g} s to compile. Please send smaller or fewer schemas."
        )
        raise InvalidRequest(Failed("invalid_value", message, param=param)) from error
    request = Request(job, checkpoint, prompt.tokens, prompt.inputs, emit, open_choices=job.n)
    max_new_tokens = min(job.max_tokens, checkpoint.context - len(prompt.tokens))
    sequences = [_sequence(request, choice, max_new_tokens, constraint, prompt_text) for choice in range(job.n)]
    for sequence in sequences:
        sequence.budget = budget and budget.copied()
    dropped = len(messages) - len(prompt.messages)
    unread = unread_thoughts(checkpoint, conversation, prompt)
    ignored = tuple(f"messages[{index}].reasoning_content" for index in unread)
    ignored += grammar.unenforced if grammar else ()
    ignored += ("thinking_token_budget",) if job.thinking_budget is not None and budget is None else ()
    if tools and checkpoint.syntax.is_unknown and job.tool_choice != "required":
        ignored += ("tools (calls of this model come as text: its syntax is not known)",)
    return sequences, Admitted(len(prompt.tokens), dropped, unused, ignored)


def _thinking_options(job: ChatJob, traits: TemplateTraits) -> dict[str, Any]:
    """Return the variables by which a template tells the model the request's budget of thoughts."""
    if job.thinking_budget == 0:
        return dict(OFF)
    told = job.thinking_budget is not None and BUDGET in traits.variables
    return {BUDGET: job.thinking_budget} if told else {}


def _budget(checkpoint: ChatCheckpoint, tokens: int | None) -> ThinkingBudget | None:
    """Return the budget of thoughts of so many tokens; None where there is none, or thoughts are not known."""
    ends = checkpoint.syntax.thought_ends
    if tokens is None or ends is None:
        return None
    words, mark, again = (checkpoint.tokens.encode(text) for text in ends)
    return ThinkingBudget.of(tokens, words, mark, again)


def count_prompt_tokens(checkpoint: ChatCheckpoint, job: CountJob, emit: Callable[[ChatEvent], None]) -> int:
    """Count the tokens of a conversation's prompt. Raises InvalidRequest."""
    emit(Started())  # the server's time limit begins here: it kills a worker that hangs
    messages = template_messages(checkpoint, job.messages, job.images)
    return count_tokens(checkpoint, Conversation(messages, job.tools))


def _constrained(checkpoint: ChatCheckpoint, job: ChatJob, prompt_text: str) -> tuple[Grammar, Constraint] | None:
    """Return the grammar of the output, and that compiled. Where the library does not take the schemas of many tools at
    once, their arguments are free."""
    tokens, syntax = checkpoint.tokens, checkpoint.syntax
    build = partial(build_grammar, tokens, job, syntax, syntax.thought_state(prompt_text))
    if (grammar := build()) is None:
        return None
    try:
        return grammar, Constraint(tokens, grammar)
    except RuntimeError:
        if not job.tools or (grammar := build(any_arguments=True)) is None:
            raise
        return grammar, Constraint(tokens, grammar)


def _sequence(
    request: Request, choice: int, max_new_tokens: int, constraint: Constraint | None, prompt_text: str
) -> Sequence:
    """Build the sequence of a choice. `prompt_text` is empty where the output can have neither reasoning nor calls."""
    job, tokens = request.job, request.checkpoint.tokens
    sampling = job.sampling.with_defaults(request.checkpoint.spec.defaults)
    seen = frozenset(request.prompt if sampling.repetition_penalty != 1.0 else ())
    logprobs = job.top_logprobs if job.logprobs else None
    ends = tuple(token for token in request.ends if token < tokens.vocab_size)
    sampler = SamplerState(sampling, job.choice_seed(choice), logprobs, ends, seen)
    own = constraint.copied() if constraint else None
    output = _output(request, choice, prompt_text)
    output.max_string = job.checkpoint.max_string if own else None
    return Sequence(request, choice, sampler, output, own, max_new_tokens, tokens=list(request.prompt))


def _output(request: Request, choice: int, prompt_text: str) -> ChoiceOutput:
    job, checkpoint, syntax = request.job, request.checkpoint, request.checkpoint.syntax
    calls, required = bool(job.tools) and job.tool_choice != "none", job.tool_choice == "required"
    fields = syntax.parser_fields(tools=calls, required=calls and required)
    if set(fields) == {"content"} or not prompt_text:
        return ChoiceOutput(choice, checkpoint.tokens, job.stop)
    if not syntax.anchor:
        open_thoughts = syntax.thoughts is not None and syntax.thought_state(prompt_text) == "open"
        prompt_text = syntax.thoughts.opening if syntax.thoughts and open_thoughts else ""
    form = syntax.call_format(required=required) if calls else None
    parser = OutputParser(fields, prompt_text, job.tools, form, syntax.anchor, frozenset(job.input_grammars))
    max_calls = None if job.parallel_tool_calls else 1
    return ChoiceOutput(
        choice, checkpoint.tokens, job.stop, parser, _parsed_tokens(checkpoint, fields, form), max_calls
    )


def _parsed_tokens(checkpoint: ChatCheckpoint, fields: ParserFields, form: CallFormat | None) -> frozenset[int]:
    """Return the special tokens that the parser needs to see, because its patterns contain them."""
    markers = marker_text(fields, form)
    return frozenset(token for token, text in checkpoint.tokens.special.items() if text in markers)


def _check_bias(checkpoint: ChatCheckpoint, job: ChatJob) -> None:
    for token in job.sampling.logit_bias:
        if not 0 <= token < checkpoint.tokens.vocab_size:
            message = (
                f"logit_bias names token {token}; this model's tokens are 0 to {checkpoint.tokens.vocab_size - 1}."
            )
            raise InvalidRequest(Failed("invalid_value", message, param="logit_bias"))
