"""How much of a conversation the context takes: whether it fits, without its oldest turns if it may, and its tokens.

What is tokenized is bounded by the context, however long the messages are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pipelines.chat.encoding import Conversation, Prompt, encode_prompt, render_prompt
from pipelines.chat.failures import InvalidRequest
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.protocol.images import Failed

LONG: Final = 8  # characters for each token of the context; more are counted before they are tokenized as a whole
PIECE: Final = 2**14  # characters that are counted at once
SURE: Final = 0.95  # of the tokens that were counted in pieces: at each cut there may be one or two too many


def fit_prompt(checkpoint: ChatCheckpoint, conversation: Conversation, *, truncate: bool) -> Prompt:
    """Return a prompt that leaves room for an answer. `truncate` drops the oldest turns for it. Raises
    InvalidRequest."""
    least = least_tokens(checkpoint, conversation)
    is_exact = least < checkpoint.context
    if is_exact:
        full = encode_prompt(checkpoint, conversation)
        if (least := len(full.tokens)) < checkpoint.context:
            return replace(full, messages=conversation.messages)
    shorter = _without_oldest(checkpoint, conversation) if truncate else None
    if shorter is None:
        raise InvalidRequest(_context_exceeded(least, checkpoint, is_exact=is_exact))
    return shorter


def _without_oldest(checkpoint: ChatCheckpoint, conversation: Conversation) -> Prompt | None:
    """Return the prompt without the oldest turns, as few as have to go; None if the last one does not fit alone.

    The turns are tokenized once, the newest first, and no further than the context goes. What the template adds to a
    message is learned from the first prompt that turns out too long, so two or three are made, however many turns.
    """
    instructions, turns = _turns(conversation.messages)
    context, added = checkpoint.context, 0.0
    counts = [_count_tokens(checkpoint, _text_of(instructions), context)]  # of the newest turns, from none on
    for turn in reversed(turns):
        if len(counts) == len(turns) or counts[-1] * SURE >= context:
            break
        counts.append(counts[-1] + _count_tokens(checkpoint, _text_of(turn), context))
    kept, step = len(counts) - 1, 1
    while kept > 0:
        messages = [*instructions, *(message for turn in turns[len(turns) - kept :] for message in turn)]
        if counts[kept] + added * len(messages) >= context and kept > 1:
            kept -= 1
            continue
        if counts[kept] * SURE >= context:
            return None
        shorter = encode_prompt(checkpoint, replace(conversation, messages=messages))
        if len(shorter.tokens) < context:
            return replace(shorter, messages=messages)
        if kept == 1:
            return None
        added = max(added, (len(shorter.tokens) - counts[kept]) / len(messages))
        kept, step = max(1, kept - step), 2 * step
    return None


def least_tokens(checkpoint: ChatCheckpoint, conversation: Conversation) -> int:
    """Return how many tokens the conversation has at least, counted no further than the context goes; 0, which says
    nothing, if it is so short that its prompt may simply be made."""
    likely = LONG * checkpoint.context
    if sum(len(_text_of([message])) for message in conversation.messages) <= likely:
        return 0
    text = render_prompt(checkpoint, conversation)
    return int(SURE * _count_tokens(checkpoint, text, int(checkpoint.context / SURE) + 1)) if len(text) > likely else 0


def count_tokens(checkpoint: ChatCheckpoint, conversation: Conversation) -> int:
    """Return how many tokens the prompt has. One that is much longer than the context is counted in pieces, so it may
    be a token more or less at each cut. Raises InvalidRequest."""
    if least_tokens(checkpoint, conversation) < checkpoint.context:
        return len(encode_prompt(checkpoint, conversation).tokens)
    return _count_tokens(checkpoint, render_prompt(checkpoint, conversation))


def _count_tokens(checkpoint: ChatCheckpoint, text: str, enough: int | None = None) -> int:
    """Return how many tokens a text has, to within one or two at each cut; if they are more than `enough`, so many."""
    counted = 0
    for start in range(0, len(text), PIECE):
        counted += len(checkpoint.tokenizer.encode(text[start : start + PIECE], add_special_tokens=False))
        if enough is not None and counted >= enough:
            break
    return counted


def _text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what is certainly in the prompt: the contents and the calls, without thoughts, which templates drop."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
        for call in message.get("tool_calls") or ():
            arguments = call["function"].get("arguments") or ""
            texts.append(arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
    return "\n".join(texts)


def _turns(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Split messages into the instructions that come first, and turns: each begins with a user's message."""
    first = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    turns: list[list[dict[str, Any]]] = []
    for message in messages[first:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:first]), turns


def _context_exceeded(tokens: int, checkpoint: ChatCheckpoint, *, is_exact: bool) -> Failed:
    context, count = checkpoint.context, tokens if is_exact else f"at least {tokens}"
    limited = (
        f" The model could read {checkpoint.most_tokens}; the memory for its KV cache, a setting of the operator's "
        "(DARKROOM_CHAT_CACHE_SHARE), holds fewer."
    )
    message = (
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {count} tokens, "
        "which leaves no room for an answer. Please reduce the length of the messages."
        f"{limited if context < checkpoint.most_tokens else ''}"
    )
    return Failed("context_length_exceeded", message, param="messages", context=(tokens, context))
