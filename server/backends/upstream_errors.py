"""What the errors of other servers mean, in OpenAI's words. Pure.

Every server has a sentence, a type, a code and a status of its own for the same few causes that clients act on. A cause
is known by the names that servers have for it, else by several words that only its errors have together.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_WORDS = 8_000  # characters of an error that are looked at, and of its message that are passed on
MAX_STRINGS = 60  # of an error
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """What OpenAI's protocol says for a cause."""

    code: str
    type: str
    status: int


CONTEXT = Cause("context_length_exceeded", "invalid_request_error", 400)
TOO_LARGE = Cause("request_too_large", "invalid_request_error", 413)
QUOTA = Cause("insufficient_quota", "insufficient_quota", 429)
RATE = Cause("rate_limit_exceeded", "requests", 429)
OVERLOADED = Cause("server_overloaded", "server_error", 503)
MODEL = Cause("model_not_found", "invalid_request_error", 404)
KEY = Cause("upstream_refused", "server_error", 500)  # it refuses this server's key, not the caller's


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """An error of another server. For a conversation that exceeds the context, `tokens` are its own and `context` those
    that fit, if the server says so; `at_least` that it did not count to the end."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    tokens: int | None = None
    context: int | None = None
    at_least: bool = False

    @property
    def exceeds_context(self) -> bool:
        """Return whether the conversation and the answer that it asks for are too long together."""
        return self.code == CONTEXT.code

    def body(self) -> Json:
        """Return the error in OpenAI's format."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


# Types, codes and names of statuses that servers have for a cause: their letters
NAMES = (
    (CONTEXT, _any("context(length|window|size|limit)exceed", "exceed(s|ed|ing)?(the)?context", "inputlengtherror",
                   "prompttokensexceed", "prompttoolong", "contextoverflow")),
    (QUOTA, _any("insufficient(quota|balance|credit|fund)", "billing", "budgetexceeded", "exceededbudget",
                 "paymentrequired", "arrearage", "creditlimit")),
    (OVERLOADED, _any("overloaded", "serviceunavailable", "^unavailable", "(engine|server)busy")),
    (RATE, _any("ratelimit", "throttl", "toomanyrequests", "resourceexhausted")),
    (TOO_LARGE, _any("requesttoolarge", "payloadtoolarge", "entitytoolarge")),
    (MODEL, _any("modelnot(found|exist)", "unknownmodel", "deploymentnotfound")),
    (KEY, _any("invalidapikey", "apikeyinvalid", "authentication", "unauthenticated", "unauthorized",
               "(permission|access)denied")),
)  # fmt: skip
CONTEXT_ALONE = _any(  # words that say it without others
    "reduce the length of (the|your) (input |prompt )?(messages|prompt|input)",
    r"(prompt|input|context)( (tokens?|text|len|length|count|sequence|\d+))* (is |was )?too (long|large)",
    "context[ _]?(length|window|size|limit)[ _]?(limit )?(is |was |has been |have been )?exceeded",
    r"exceed\w* ((the|this|its|your|available|maximum|max|models?) )*context",
    "exceeded model token limit",
    "too many tokens",
    r"model (only )?supports up to \d",
    "context exceeds",
    "range of input length should be",
    "prompt exceeds max length",
    r"max_tokens must be at least 1, got -\d",
    r"default_max_tokens -\d+ must be greater",
    r"current length is \d+ while limit is",
    "input_length_error",
    "(输入|上下文|提示词|prompt|tokens?)[^。]{0,20}(超|过长|过大)",
)
CONTEXT_TOGETHER = (  # one of each: what is exceeded, that it is, by what
    _any(
        r"context[ _-]*(length|window|size|limit|len\b|overflow|the overflow)",
        r"\b(n_ctx|num_ctx|max_(model|seq|input|total|num|prefill)_(len|tokens)|session_len)",
        r"\bmax(imum)? ((?!completion|output|new|generat)\w+ ){0,3}(length|len|tokens)\b",
        "max_new_tokens must",
        "tokens? limit",
        r"limit (of|is) \d",
        r"(fewer|less) than \d+ tokens",
    ),
    _any(
        "exceed", "too (long|large|many|big)", "(long|great|larg)er than", "more than", "overflow", "surpass",
        "must (be|have) (<|less|at most|smaller)", "should (not|be (<|less|at most|smaller))",
        "not (enough|possible|fit)", "reduce", r"(maximum|context) [^.]{0,60}\bis (just |only )?\d", "over the",
    ),
    _any("prompt", r"inputs?\b", r"messages?\b", "request", "tokens?", "sequence", "conversation"),
)  # fmt: skip
OTHER_BOUND = _any(  # where something else than the context is exceeded
    "expected an? (string|array|object) with maximum",
    r"\bimages?\b[^.]{0,60}(exceed|too (large|many|big))",
    r"at most \d+ (completion|output) tokens",
)
PER_TIME = _any(
    "rate[ _-]?limit", "too many requests", "throttl", "per (minute|min|second|hour|day)", r"\b(tpm|rpm|tpd|rpd)\b",
    "please wait", "slow down", "capacity exceeded", r"try again in \d", "concurren(t|cy)[^.]{0,40}(limit|exceed)",
)  # fmt: skip
WORDS = (
    (QUOTA, _any("exceeded your current quota", "insufficient (quota|balance|credits?|funds?)", "credit balance",
                 "(out of|more) credits", "budget has been exceeded", "payment required",
                 "(spend(ing)?|key) limit exceeded", "in arrears", "plan and billing", "余额不足", "欠费")),
    (RATE, PER_TIME),
    (OVERLOADED, _any("overloaded", "(over|at) capacity", "(server|engine|model) (is )?(currently |too )*busy",
                      "queue is full", "loading (the )?model", "model is (currently |still )*(being )?load",
                      "no (healthy|available) (upstream|deployment|instance|worker|server)",
                      "(temporarily|currently) unavailable", "service ?unavailable", "maximum pending requests")),
    (TOO_LARGE, _any("(entity|payload|body) (is )?too large", "request (size )?exceeds the maximum", "payload size")),
    (MODEL, _any(r"\bmodels?[ /:]+(\S{1,200} )?(does ?no?t exist|(is |was )?not (found|exist|available|served|loaded))",
                 r"(no such|unknown|invalid) model( name| id|\b[:.,]|$)", "not a valid model", "no endpoints found for",
                 "unable to access model")),
    (KEY, _any("(incorrect|invalid|wrong|missing|no) (api[ -]?key|x-api-key|authentication|credentials)",
               "api[ -]?key not valid", "authentication ?(fail|error)", r"\bunauthori[sz]ed")),
)  # fmt: skip
BY_STATUS = {401: KEY, 402: QUOTA, 403: KEY, 413: TOO_LARGE, 429: RATE, 503: OVERLOADED, 529: OVERLOADED}
OF_ANY_CAUSE = frozenset({400, 404, 422, 424, 500, 502})  # statuses whose words are believed

N = r"(\d{1,9})\b"
TOKENS = (  # of the conversation, the surest first
    rf"{N} (?:tokens )?(?:in|from|of) (?:the |your |text |input )+(?:messages|prompt|input)?",
    rf"contains?(?: at least| about)? {N}",
    rf"{N} (?:inputs?|prompt) tokens",
    rf"(?:in|over|has) {N} (?:text |input |prompt )?tokens",
    rf"too long:? {N}",
    rf"{N} \+ \d+ >",
    rf"splited_prompt_len {N}",
    rf"(?:prompt|input|request|sequence)s?(?: tokens?)?(?: length| len| count)?(?: of| is| was|:)? {N}",
    rf"given:? {N}",
    rf"n_keep:? {N}",
    rf"first {N} tokens",
    rf"current length is {N}",
    rf"(?:requested|has):?(?: tokens)?(?: about| a total of)? {N}",
    rf"received {N}",
)
LIMITS = (  # of the context
    rf">=? {N}",
    rf"context[ _-]*(?:length|window|size|limit)s?(?: of only| of| is only| is|:)? {N}",
    rf"max_(?:model|seq|input|total|num)_(?:len|tokens)\w* ?[=:]? ?{N}",
    rf"max(?:imum)? (?:(?!by |completion|output|new |generat)[\w:]+ ){{0,5}}{N}",
    rf"model with {N}",
    rf"n_ctx:? {N}",
    rf"supports up to {N}",
    rf"limit(?: of| is|:) {N}",
    rf"(?:<=|less than|at most|exceed) {N}",
    rf"\[\d+, ?{N}",
)
COUNTED = (("n_prompt_tokens", "prompt_tokens", "input_tokens"), ("n_ctx", "max_context_length", "context_length"))


def read_error(body: Any, status: int | None) -> UpstreamError:
    """Return what an error of another server means: with its cause's own status, type and code, or as it was sent where
    none is known. `status` is None where it came as an event, or with a success."""
    fields, words = _fields(body), _words(body)
    sent = status or _status_of(fields) or 500
    message, param = _message(fields), fields.get("param")
    cause = _cause(fields, words, sent)
    if cause is CONTEXT:
        tokens, context = _counts(body, words)
        message = _in_openai_words(message, tokens, context)
        at_least = "at least" in words
        return UpstreamError(CONTEXT.status, message, CONTEXT.type, "messages", CONTEXT.code, tokens, context, at_least)
    if cause is not None:
        return UpstreamError(cause.status, message, cause.type, _text(param), cause.code)
    kind = _text(fields.get("type")) or ("invalid_request_error" if sent < 500 else "server_error")
    code = _text(fields.get("code"))
    return UpstreamError(sent, message, kind, _text(param), None if code and code.isdecimal() else code)


def _cause(fields: Json, words: str, status: int) -> Cause | None:
    named = _named(fields)
    if named is CONTEXT or (status in OF_ANY_CAUSE | {413} and named is not RATE and _is_context(words)):
        return CONTEXT
    said = next((cause for cause, pattern in WORDS if pattern.search(words)), None)
    if status in {402, 413, 529}:
        return BY_STATUS[status]
    if status in {401, 403, 429} and QUOTA in (named, said):
        return QUOTA
    if status in {401, 403}:
        return KEY
    believed = said if status in OF_ANY_CAUSE else None
    return named or believed or BY_STATUS.get(status)


def _named(fields: Json) -> Cause | None:
    """Return the cause that a name of the error has."""
    sent = (fields.get(name) for name in ("code", "type", "error_type", "status", "__type", "name"))
    names = [re.sub("[^a-z]", "", each.lower()) for each in sent if isinstance(each, str)]
    return next((cause for cause, pattern in NAMES if any(map(pattern.search, names))), None)


def _is_context(words: str) -> bool:
    if PER_TIME.search(words) or OTHER_BOUND.search(words):
        return False
    return bool(CONTEXT_ALONE.search(words)) or all(pattern.search(words) for pattern in CONTEXT_TOGETHER)


def _fields(body: Any) -> Json:
    """Return the fields of the error, wherever the body has them."""
    while isinstance(body, list) and body:  # Google's
        body = body[0]
    if not isinstance(body, dict):
        return {"message": body}
    error = body.get("error") or body.get("detail") or body
    return error if isinstance(error, dict) else {**body, "message": error}


def _message(fields: Json) -> str:
    """Return the error's sentence. A router's own says nothing without that of the server behind it."""
    message, metadata = fields.get("message"), fields.get("metadata")
    said = message if isinstance(message, str) else json.dumps(fields if message is None else message)
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    said = said[:MAX_WORDS]
    return f"{said}: {raw[:MAX_WORDS]}" if isinstance(raw, str) and raw else said


def _status_of(fields: Json) -> int | None:
    """Return the HTTP status that an error has as a field."""
    for name in ("code", "status", "status_code", "statusCode"):
        sent = fields.get(name)
        if isinstance(sent, int | str) and re.fullmatch("[45][0-9]{2}", str(sent)):
            return int(sent)
    return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _strings(inner)


def _words(body: Any) -> str:
    """Return what the error says, in lower case, without quotes and brackets, and numbers without commas."""
    texts = [text for text, _ in zip(_strings(body), range(MAX_STRINGS), strict=False)]
    text = re.sub(r"(?<=\d),(?=\d{3})", "", " ; ".join(texts)[:MAX_WORDS].lower())
    return re.sub(r"\s+", " ", re.sub(r"\\n|[\\'’\"`(){}]", " ", text.replace("model's", "models")))


def _counts(body: Any, words: str) -> tuple[int | None, int | None]:
    """Return the tokens of the conversation, and those that fit, each None if the server does not say."""
    fields = _fields(body)
    counted = [next((fields[name] for name in names if type(fields.get(name)) is int), None) for names in COUNTED]
    found = [_number(patterns, words) for patterns in (TOKENS, LIMITS)]
    tokens, context = (said if said is not None else read for said, read in zip(counted, found, strict=True))
    return tokens, context


def _number(patterns: tuple[str, ...], words: str) -> int | None:
    return next((int(found[1]) for pattern in patterns if (found := re.search(pattern, words))), None)


def _in_openai_words(message: str, tokens: int | None, context: int | None) -> str:
    """Return the message with OpenAI's own sentence before it, by which clients know it, unless it has that."""
    if re.search(r"maximum context length is \d+ tokens|exceeds the context window", message):
        return message
    if context is None:
        return f"Your input exceeds the context window of this model. {message}"
    took = f" However, your messages resulted in {tokens} tokens." if tokens is not None and tokens > context else ""
    return f"This model's maximum context length is {context} tokens.{took} {message}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
