"""The golden table of conversations: what a model is shown of each, whatever protocol tells it.

`shown` are the lines of the prompt by a template that takes everything (`PLAIN`): the role, thoughts in parentheses,
contents with `|` between their parts, calls. A line of a family's own template has the same words in the same order.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.in_process import png
from tests.support.told import (
    Turn,
    answer,
    audio,
    block,
    call,
    image,
    instructions,
    pdf,
    result,
    results,
    text,
    user,
)

PLAIN = """{%- for m in messages -%}
{{ m.role }}{{ ' ' ~ m.name if m.name and m.role == 'user' }}
{{- ' (' ~ m.reasoning_content ~ ')' if m.reasoning_content }}:
{%- if m.content is string %} {{ m.content }}
{%- else %}{% for part in m.content %}
{{- '|' if not loop.first }} {{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}
{%- for call in m.tool_calls or [] %} {{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{{- '\\n' }}
{%- endfor -%}"""
SEEN = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
NO_ID = "a call and its result need an id here"
NO_DEVELOPER = "it has no developers"


@dataclass(frozen=True)
class Row:
    """One conversation. `refused` is a part of the error's message, if it is refused. `named`: something of it has no
    effect, and is named so. `sees`: its model does. `cannot` are protocols that can't tell it, with the reason."""

    turns: Sequence[Turn]
    shown: Sequence[str] = ()
    refused: str = ""
    named: bool = False
    sees: bool = False
    cannot: dict[str, str] = field(default_factory=dict)


HELLO, MORE = user(text("say1")), user(text("say9"))
PARIS, LONDON = call("look", "call_a", at="say2"), call("look", "call_b", at="say3")
CALLED = 'assistant: look({"at": "say2"}) look({"at": "say3"})'
ASKED = 'assistant: look({"at": "say2"})'
SUN, RAIN = result(text("say4"), of="call_a"), result(text("say5"), of="call_b")
BARE = {"responses": NO_ID, "messages": NO_ID}
DOCUMENT = block(type="document", title="say3", source={"type": "text", "data": "say4"})
OWN_WORDS = {"gemini": "a part is known by its key, and none is a document"}
ONE_TEXT = {"gemini": "a result is one object"}

TABLE: dict[str, Row] = {
    # texts
    "a word": Row([HELLO], ["user: say1"]),
    "a round": Row([HELLO, answer(text("say2")), user(text("say3"))], ["user: say1", "assistant: say2", "user: say3"]),
    "two texts": Row([user(text("say1 in"), text("say2.py"))], ["user: say1 in\nsay2.py"]),
    "a text that ends in a line": Row([user(text("say1\n"), text("say2"))], ["user: say1\nsay2"]),
    "a text that begins with a space": Row([user(text("say1"), text(" say2"))], ["user: say1 say2"]),
    "an empty text between two": Row([user(text("say1"), text(""), text("say2"))], ["user: say1\nsay2"]),
    "two texts of an answer": Row(
        [HELLO, answer(text("say2"), text("say3")), MORE], ["user: say1", "assistant: say2\nsay3", "user: say9"]
    ),
    "two texts of the instructions": Row(
        [instructions(text("say1"), text("say2")), MORE], ["system: say1\nsay2", "user: say9"],
    ),
    "instructions in the middle": Row(
        [HELLO, answer(text("say2")), instructions(text("say3")), MORE],
        ["user: say1", "assistant: say2", "system: say3", "user: say9"],
    ),
    "a developer": Row(
        [instructions(text("say1"), role="developer"), MORE],
        ["system: say1", "user: say9"], cannot={"messages": NO_DEVELOPER, "gemini": NO_DEVELOPER},
    ),
    "two messages of the user": Row([HELLO, user(text("say2"))], ["user: say1", "user: say2"]),
    "a person's name": Row(
        [user(text("say1"), name="Ada")], ["user Ada: say1"],
        cannot=dict.fromkeys(("responses", "messages", "gemini"), "it has no names of people"),
    ),
    "an empty answer": Row([HELLO, answer(text("")), MORE], ["user: say1", "user: say9"]),
    "an answer without parts": Row([HELLO, answer(), MORE], ["user: say1", "user: say9"]),
    "an earlier message without parts": Row(
        [user(), answer(text("say2")), MORE], ["user:", "assistant: say2", "user: say9"]
    ),
    "a refusal in an earlier answer": Row(
        [HELLO, answer(refusal="say2"), MORE], ["user: say1", "assistant: say2", "user: say9"],
        cannot={"gemini": "an answer has no refusals"},
    ),
    # thoughts
    "a thought": Row(
        [HELLO, answer(text("say2"), thoughts=["thought1"]), MORE],
        ["user: say1", "assistant (thought1): say2", "user: say9"],
    ),
    "two thoughts": Row(
        [HELLO, answer(text("say2"), thoughts=["thought1", "thought2"]), MORE],
        ["user: say1", "assistant (thought1\nthought2): say2", "user: say9"],
    ),
    "a thought with a signature": Row(
        [HELLO, answer(text("say2"), thoughts=["thought1"], signature="c2ln"), MORE],
        ["user: say1", "assistant (thought1): say2", "user: say9"],
    ),
    "a thought before a call": Row(
        [HELLO, answer(thoughts=["thought1"], calls=[PARIS]), results(SUN)],
        ["user: say1", 'assistant (thought1): look({"at": "say2"})', "tool: say4"],
    ),
    "thoughts alone": Row(
        [HELLO, answer(thoughts=["thought1"]), MORE], ["user: say1", "assistant (thought1):", "user: say9"]
    ),
    # calls and results
    "a call": Row([HELLO, answer(calls=[PARIS]), results(SUN)], ["user: say1", ASKED, "tool: say4"]),
    "a text beside a call": Row(
        [HELLO, answer(text("say2"), calls=[call("look", "call_a", at="say3")]), results(SUN)],
        ["user: say1", 'assistant: say2 look({"at": "say3"})', "tool: say4"],
    ),
    "a call without arguments": Row(
        [HELLO, answer(calls=[call("look", "call_a")]), results(SUN)],
        ["user: say1", "assistant: look({})", "tool: say4"],
    ),
    "two calls": Row(
        [HELLO, answer(calls=[PARIS, LONDON]), results(SUN, RAIN)],
        ["user: say1", CALLED, "tool: say4", "tool: say5"],
    ),
    "results in another order": Row(
        [HELLO, answer(calls=[PARIS, LONDON]), results(RAIN, SUN)],
        ["user: say1", CALLED, "tool: say4", "tool: say5"],
    ),
    "results in another order, and a word": Row(
        [HELLO, answer(calls=[PARIS, LONDON]),
         results(RAIN, SUN, then=[text("say9")])],
        ["user: say1", CALLED, "tool: say4", "tool: say5", "user: say9"],
    ),
    "equal results": Row(
        [HELLO, answer(calls=[PARIS, LONDON]),
         results(result(text("same"), of="call_a"), result(text("same"), of="call_b"))],
        ["user: say1", CALLED, "tool: same", "tool: same"],
    ),
    "results that are told twice": Row(
        [HELLO, answer(calls=[PARIS]), results(SUN, SUN)],
        ["user: say1", ASKED, "tool: say4"],
    ),
    "calls of one function without ids": Row(
        [HELLO, answer(calls=[call("look", at="say2"), call("look", at="say3")]),
         results(result(text("say4")), result(text("say5")))],
        ["user: say1", CALLED, "tool: say4", "tool: say5"], cannot=BARE,
    ),
    "equal results without ids": Row(
        [HELLO, answer(calls=[call("look", at="say2"), call("look", at="say3")]),
         results(result(text("same")), result(text("same")))],
        ["user: say1", CALLED, "tool: same", "tool: same"], cannot=BARE,
    ),
    "results by name, in another order": Row(
        [HELLO, answer(calls=[call("look", at="say2"), call("hear", at="say3")]),
         results(result(text("say5"), name="hear"), result(text("say4")))],
        ["user: say1", 'assistant: look({"at": "say2"}) hear({"at": "say3"})', "tool: say4", "tool: say5"], cannot=BARE,
    ),
    "two rounds of one function without ids": Row(
        [HELLO, answer(calls=[call("look", at="say2")]), results(result(text("say3"))),
         answer(calls=[call("look", at="say4")]), results(result(text("say5")))],
        ["user: say1", ASKED, "tool: say3", 'assistant: look({"at": "say4"})', "tool: say5"], cannot=BARE,
    ),
    "a call without a result": Row(
        [HELLO, answer(calls=[PARIS]), MORE], ["user: say1", ASKED, "tool: (no result)", "user: say9"]
    ),
    "two calls and one result": Row(
        [HELLO, answer(calls=[PARIS, LONDON]), results(RAIN), MORE],
        ["user: say1", CALLED, "tool: (no result)", "tool: say5", "user: say9"],
    ),
    "a result without a call": Row(
        [results(result(text("say1"), of="call_x")), MORE], ["user: Result of the tool:\nsay1", "user: say9"]
    ),
    "a result by an id that nobody has": Row(
        [HELLO, answer(calls=[PARIS]), results(result(text("say4"), of="call_x"))], ["user: say1", ASKED, "tool: say4"]
    ),
    "a result that failed": Row(
        [HELLO, answer(calls=[PARIS]), results(result(of="call_a", failed="say4"))],
        ["user: say1", ASKED, "tool: error: say4"],
    ),
    "two texts of a result": Row(
        [HELLO, answer(calls=[PARIS]), results(result(text("say4"), text("say5"), of="call_a"))],
        ["user: say1", ASKED, "tool: say4\nsay5"], cannot=ONE_TEXT,
    ),
    "a result without parts": Row(
        [HELLO, answer(calls=[PARIS]), results(result(of="call_a"))], ["user: say1", ASKED, "tool:"]
    ),
    # images
    "an image": Row([user(text("say1"), image(SEEN))], ["user: say1| <image>"], sees=True),
    "texts around an image": Row(
        [user(text("say1"), text("say2"), image(SEEN), text("say3"), text("say4"))],
        ["user: say1\nsay2| <image>| say3\nsay4"], sees=True,
    ),
    "an image for a blind model": Row([user(text("say1"), image(SEEN))], refused="does not see images"),
    "an earlier image for a blind model": Row(
        [user(text("say1"), image(SEEN)), answer(text("say2")), MORE],
        ["user: say1\n[image]", "assistant: say2", "user: say9"], named=True,
    ),
    "an image of an answer": Row(
        [HELLO, answer(text("say2"), image(SEEN)), MORE],
        ["user: say1", "assistant: say2\n[image]", "user: say9"], named=True, sees=True,
    ),
    "an image of a tool": Row(
        [HELLO, answer(calls=[PARIS]), results(result(text("say4"), image(SEEN), of="call_a"))],
        ["user: say1", ASKED, "tool: say4", "user: <image>"], sees=True,
    ),
    "an image of a tool alone, and a word": Row(
        [HELLO, answer(calls=[PARIS]), results(result(image(SEEN), of="call_a"), then=[text("say9")])],
        ["user: say1", ASKED, "tool: [image]", "user: <image>| say9"], sees=True,
    ),
    "an image of a tool for a blind model": Row(
        [HELLO, answer(calls=[PARIS]), results(result(text("say4"), image(SEEN), of="call_a"))],
        ["user: say1", ASKED, "tool: say4\n[image]"], named=True,
    ),
    "more images than are shown": Row(
        [user(*[image(SEEN)] * 20), answer(text("say2")), user(*[image(SEEN)] * 14)],
        ["user: [image]\n[image]" + "| <image>" * 18, "assistant: say2", "user:" + "|".join([" <image>"] * 14)],
        named=True, sees=True,
    ),
    # what can't be read
    "more images than a message may have": Row(
        [user(*[image(SEEN)] * 33)], refused="too many images. Expected at most 32, but got 33", sees=True
    ),
    "an earlier sound": Row(
        [user(text("say1"), audio), answer(text("say2")), MORE],
        ["user: say1\n[audio]", "assistant: say2", "user: say9"], named=True,
    ),
    "a sound": Row([user(text("say1"), audio)], refused="no audio: send what was said as text"),
    "an earlier file": Row(
        [user(text("say1"), pdf), answer(text("say2")), MORE],
        ["user: say1\n[file: a.pdf]", "assistant: say2", "user: say9"], named=True,
    ),
    "a file": Row([user(text("say1"), pdf)], refused="no files: send the text of the file, or images of its pages"),
    "a file of a tool": Row(
        [HELLO, answer(calls=[PARIS]), results(result(text("say4"), pdf, of="call_a"))],
        ["user: say1", ASKED, "tool: say4\n[file: a.pdf]"], named=True,
    ),
    "a document that is text": Row(
        [user(text("say1"), DOCUMENT)], ["user: say1\nsay3\nsay4"], cannot=OWN_WORDS
    ),
    "a document that a tool returned": Row(
        [HELLO, answer(calls=[PARIS]), results(result(DOCUMENT, of="call_a"))],
        ["user: say1", ASKED, "tool: say3\nsay4"], cannot=OWN_WORDS,
    ),
    "an earlier block of a new kind": Row(
        [user(text("say1"), block(type="novel", name="x")), answer(text("say2")), MORE],
        ["user: say1\n[novel: x]", "assistant: say2", "user: say9"], named=True, cannot=OWN_WORDS,
    ),
    "what was said after an answer began": Row(
        [user(text("say1"), pdf), answer(calls=[PARIS]), results(SUN)],
        ["user: say1\n[file: a.pdf]", ASKED, "tool: say4"], named=True,
    ),
}  # fmt: skip
