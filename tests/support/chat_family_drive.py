"""One family of chat models through a running server, as a client meets it, with a model that writes what the family's
makers say that it writes.

A fault is a 500, an answer that differs beside others, a word of a conversation that the model is not shown, thoughts
or marks in the text of an answer, a call that is not understood, and JSON that breaks its schema.
"""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from transformers import AutoTokenizer

from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.known import ALL_THOUGHTS
from tests.support.chat_families import FAMILIES
from tests.support.chat_families.family import ChatFamily
from tests.support.chat_outputs import AFTER_ANSWER, BEFORE_ANSWER, CASES, CITY, TOOLS
from tests.support.conversations import CONVERSATIONS, result, said
from tests.support.harness import START_LIMIT_S, Server
from tests.support.in_process import png
from tests.support.scripted_chat_worker import SCRIPT, SHOWN

ANSWER: Final = "It rains."
FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": False}}
THOUGHTS: Final = (*ALL_THOUGHTS, *(known.thoughts for known in TABLE.values() if known.thoughts))
LENGTHS: Final = (3, 40, 300)  # words of prompts that are answered alone and together
MIN_SHIFT: Final = 0.01  # of a log probability, by another image: many times what rounding makes of it


@dataclass
class DrivenChat:
    """What a family did. `cells` is its row of docs/reference/chat-families.md; `faults` is what must not be."""

    name: str
    class_name: str
    cells: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def drive_chat(server: Server, name: str) -> DrivenChat:
    """Drive the checkpoint of this name, which is a chat model of the server."""
    driven = DrivenChat(name, FAMILIES[name].class_name)
    family = _Family(server, FAMILIES[name], driven)
    if family.load():
        for step in (family.converse, family.think, family.use_tools, family.follow_a_schema, family.take_another_turn):
            step()
    return driven


class _Family:
    def __init__(self, server: Server, family: ChatFamily, driven: DrivenChat) -> None:
        self.family = family
        self.driven = driven
        self.folder: Path = server.weights / family.name
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.http = server.http()
        self.http.timeout = httpx.Timeout(START_LIMIT_S)
        _, self.thoughts, self.calls, self.arguments = CASES[family.writes] if family.writes else ("", "", "", [])
        self.thoughts = family.thoughts or (self.thoughts if family.thinks else "")
        self.shows_tools = True

    def fault(self, text: str) -> None:
        self.driven.faults.append(text)

    def load(self) -> bool:
        """Answer by random weights: alone and beside others."""
        asked: list[Any] = [said("user", " ".join(f"word{i * k % 17}" for i in range(k))) for k in LENGTHS]
        alone = [self.ask([message], max_tokens=8) for message in asked]
        if errors := [answer["error"] for answer in alone if "choices" not in answer]:
            self.driven.cells["loads"] = "no"
            self.fault(f"does not answer: {errors[0]}")
            return False
        card = self.http.get(f"/v1/models/{self.family.name}").json()
        self.driven.cells["loads"] = "yes, with images" if card["vision"] else "yes"
        self.driven.cells["batched"] = "yes" if card["batched"] else "no"
        if card["vision"]:
            self.look()
            asked.append(_look("teal"))
            alone.append(self.ask([asked[-1]], max_tokens=8))
        with ThreadPoolExecutor(len(asked)) as threads:
            together = list(threads.map(lambda message: self.ask([message], max_tokens=8), asked))
        if (texts := [_texts(alone), _texts(together)]) and texts[0] != texts[1]:
            self.fault(f"answers differ beside others: {texts}")
        return True

    def look(self) -> None:
        """See images: another one makes other tokens likely, the same one the same. Random weights may go on to write
        the same text all the same."""
        first, other, again = (self._likely(_look(colour)) for colour in ("teal", "white", "teal"))
        shift = max((abs(first[token] - other[token]) for token in first.keys() & other.keys()), default=9.0)
        if not first or first != again or shift < MIN_SHIFT:
            self.fault(f"it does not see: {first} of one image, {other} of another, {again} of the first again")

    def _likely(self, message: dict[str, Any]) -> dict[str, float]:
        """Return the log probabilities of the likeliest first tokens of an answer."""
        answer = self.ask([message], max_tokens=1, logprobs=True, top_logprobs=20)
        if "choices" not in answer:
            return {}
        content = answer["choices"][0]["logprobs"]["content"]
        return {str(each["bytes"]): each["logprob"] for each in content[0]["top_logprobs"]}

    def ask(self, messages: list[Any], script: str | None = None, **fields: Any) -> dict[str, Any]:
        """Return the answer; of a model that writes the script, if there is one."""
        path = self.folder / SCRIPT
        path.unlink(missing_ok=True)
        if script is not None:
            tokens = self.tokenizer.encode(script, add_special_tokens=False)
            path.write_text(json.dumps([*tokens, self.tokenizer.eos_token_id]))
        body = {"model": self.family.name, "messages": messages, "temperature": 0, "max_tokens": 400, **fields}
        answer = self.http.post("/v1/chat/completions", json=body)
        path.unlink(missing_ok=True)
        if answer.status_code >= 500:
            self.fault(f"{answer.status_code} {answer.text[:200]}")
        parsed: dict[str, Any] = answer.json()
        return parsed

    @property
    def shown(self) -> str:
        return (self.folder / SHOWN).read_text()

    def converse(self) -> None:
        """Show the model conversations of many clients."""
        self.shows_tools = "choices" in self.ask([said("user", "Hi")], self._answer(), tools=TOOLS)
        lost = {}
        for name, messages in CONVERSATIONS.items():
            called = any("tool_calls" in message for message in messages)
            fields = {"tools": TOOLS} if called and self.shows_tools else {}
            answer = self.ask(messages, self._answer(), **fields)
            words = [word for word in _words(messages) if word not in self.shown]
            if "choices" not in answer or words:
                lost[name] = words or answer["error"]["message"]
        self.driven.cells["template"] = "no" if lost else "yes"
        for name, what in lost.items():
            self.fault(f"{name}: {what}")

    def _answer(self) -> str:
        syntax = self.family.writes or ""
        return f"{BEFORE_ANSWER.get(syntax, '')}{ANSWER}{AFTER_ANSWER.get(syntax, '')}"

    def _thought_through(self, rest: str, **fields: Any) -> dict[str, Any]:
        """Return the answer of a model that thinks before it writes the rest, where the prompt lets it."""
        question = [said("user", "How is it in Paris?")]
        self.ask(question, rest, **fields)
        end = self.shown.rstrip()
        thoughts = self.thoughts
        for known in THOUGHTS:
            if thoughts.strip().startswith(known.opening.rstrip()) and end.endswith(known.opening.rstrip()):
                thoughts = thoughts.strip().removeprefix(known.opening.rstrip())
            elif end.endswith(known.closing) and known.closing in thoughts:
                thoughts = ""
        return self.ask(question, thoughts + rest, **fields)

    def think(self) -> None:
        """Think, and answer."""
        answer = self._thought_through(self._answer(), **self._thinking)
        message = self._message(answer)
        self.driven.cells["reasoning"] = "yes" if self.thoughts else "writes none"
        if message.get("content") != ANSWER:
            self.fault(f"the answer is {message.get('content')!r}")
        reasoning = message.get("reasoning_content") or ""
        if self.thoughts and "Hm." not in reasoning and "I could write" not in reasoning:
            self.driven.cells["reasoning"] = "no"
            self.fault(f"the thoughts are {reasoning!r}")

    @property
    def _thinking(self) -> dict[str, Any]:
        return {"chat_template_kwargs": {"enable_thinking": True}} if self.thoughts else {}

    def _message(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "choices" not in answer:
            self.fault(str(answer.get("error"))[:300])
            return {}
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    def use_tools(self) -> None:
        """Call tools, if the model wants to and if it has to."""
        if not self.shows_tools:
            self.driven.cells["tools"] = "not shown: 400"
            return
        self.driven.cells["tools"] = "yes" if self.calls else "if required"
        for choice in ("auto", "required"):
            script = self.calls or None
            if script is None and choice == "auto":
                continue
            if script is None:
                answer = self.ask([said("user", "Hi")], tools=TOOLS, tool_choice=choice)
            else:
                answer = self._thought_through(script, tools=TOOLS, tool_choice=choice, **self._thinking)
            called = self._message(answer).get("tool_calls") or []
            found = [json.loads(each["function"]["arguments"]) for each in called]
            if (script and found != self.arguments) or not found:
                self.driven.cells["tools"] = "no"
                self.fault(f"{choice}: called {called}, text {self._message(answer).get('content')!r}")

    def follow_a_schema(self) -> None:
        """Write JSON, by random weights, and behind thoughts."""
        self.driven.cells["schema"] = "yes"
        syntax = self.family.writes or ""
        written = f'{BEFORE_ANSWER.get(syntax, "")}{{"city": "Bonn"}}'
        free = self.ask([said("user", "Hi")], response_format=FORMAT)
        thought = self._thought_through(written, response_format=FORMAT, **self._thinking)
        for answer in (free, thought):
            message = self._message(answer)
            text = message.get("content") or ""
            try:
                valid = isinstance(json.loads(text)["city"], str)
            except (ValueError, KeyError, TypeError):  # random weights may think to the last token
                valid = answer is free and not text and bool(message.get("reasoning_content"))
            if not valid:
                self.driven.cells["schema"] = "no"
                self.fault(f"not of the schema: {text[:200]!r}")

    def take_another_turn(self) -> None:
        """Send the server's own call back with its result."""
        if not self.shows_tools or not self.calls:
            self.driven.cells["second turn"] = "-"
            return
        first = self._message(self._thought_through(self.calls, tools=TOOLS, **self._thinking))
        results = [result(each["id"], f"say{i}") for i, each in enumerate(first.get("tool_calls") or [], 1)]
        answer = self._message(self.ask([said("user", "Weather?"), first, *results], self._answer(), tools=TOOLS))
        told = [word for word in ("Paris", *_words(results)) if word not in self.shown.split("Weather?")[-1]]
        if told or not results or ANSWER not in (answer.get("content") or answer.get("reasoning_content") or ""):
            self.driven.cells["second turn"] = "no"
            self.fault(f"second turn: {told} of {results} are not shown, {answer}")
            return
        thoughts = first.get("reasoning_content") or ""
        shows = bool(thoughts) and thoughts.strip() in self.shown
        self.driven.cells["second turn"] = "yes, with thoughts" if shows else "yes"


def _texts(answers: list[dict[str, Any]]) -> list[tuple[str | None, str | None]]:
    messages = [answer["choices"][0]["message"] for answer in answers]
    return [(each.get("reasoning_content"), each.get("content")) for each in messages]


def _look(colour: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(png(64, 64, colour)).decode()}"
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"role": "user", "content": parts}


def _words(messages: list[Any]) -> list[str]:
    text = json.dumps(messages)
    return sorted({f"say{digit}" for digit in range(10) if f"say{digit}" in text})
