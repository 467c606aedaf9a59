"""Asking for an image, then for changes to it: with an image tool there is a call, without one an answer in words.

The prompt of a new image is the subject, without the words of the request. The prompt of a change is the instruction
alone, not the whole scene again: the server passes the newest image to a model that edits by instruction. "It" is
replaced by the thing's name, because the editing model sees no earlier turn.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipelines.protocol.image_tool import IMAGE_TOOL
from starters.chat.conversations.script import Script
from starters.chat.conversations.words import (
    ADJECTIVES,
    NOUNS,
    PREPOSITIONS,
    chance,
    invented_word,
    person,
    phrase,
    pick,
    whole,
)
from starters.world import wording
from starters.world.captions import REQUESTS, caption
from starters.world.edit_wording import COMMANDS, POLITE_FRAMES
from starters.world.edits import sample_edit
from starters.world.scene import COLOURS, Scene, sample_scene
from starters.world.split import scene_split, text_split
from starters.world.wording import with_article

DRAW_REQUESTS: Final = (
    "draw {}", "Draw {}", "draw me {}", "Draw me {}, please.", "please draw {}", "Please draw {}.", "paint {}",
    "Paint {}", "paint me {}", "can you draw {}?", "Can you paint {}?", "Could you draw {}?", "could you make {}",
    "make a picture of {}", "Make me a picture of {}.", "create an image of {}", "Create an image of {}.",
    "Generate an image of {}", "generate a picture of {}", "generate {}", "I want a picture of {}.", "I want {}",
    "I would like a picture of {}", "I'd like an image of {}, please", "show me {}", "Show me a picture of {}",
    "give me an image of {}", "Give me {}", "a picture of {}", "An image of {}, please.", "picture: {}", "image of {}",
    "Hi, can you draw {}?", "Hello! Please make a picture of {}.", "Let's see {}", "I need an image of {}",
    "I need a picture that shows {}", "Would you draw {} for me?", "Please create a picture of {}", "sketch {}",
    "illustrate {}", "Design a poster of {}", "make an illustration of {}", "Please generate {}",
    "draw a picture of {}",
    "Draw a picture with {}", "Can I have a picture of {}?", "can you make me an image of {}", "{}", "{} please",
    "Use the image tool to draw {}", "Use your tool: draw {}", "Hey, draw {}", "I'd love to see {}",
)  # fmt: skip
VERBS: Final = (
    "draw", "draw me", "paint", "paint me", "sketch", "sketch me", "illustrate", "create", "generate", "design",
    "render", "depict", "picture", "visualise", "make me",
)  # fmt: skip
ORDERS: Final = tuple(  # {{}} what to draw
    order.format(verb)
    for verb in VERBS
    for order in (
        "{} {{}}", "{} {{}}.", "please {} {{}}", "Please {} {{}}.", "can you {} {{}}?", "Could you {} {{}}",
        "would you {} {{}}, please?", "I want you to {} {{}}", "let's {} {{}}", "use the image tool to {} {{}}",
        "{} {{}} please", "Hello, can you {} {{}}?", "now {} {{}}", "I need you to {} {{}}",
    )
)  # fmt: skip
IMAGE_REQUESTS: Final = tuple(
    request_text.format(image)
    for image in (
        "a picture of", "an image of", "a drawing of", "an illustration of", "a painting of", "a sketch of",
        "a poster of", "a poster with", "a picture with", "a picture that shows", "a scene with",
    )
    for request_text in (
        "{} {{}}", "I want {} {{}}", "I need {} {{}}.", "I'd like {} {{}}, please", "make {} {{}}", "Make me {} {{}}.",
        "create {} {{}}", "generate {} {{}}", "please draw {} {{}}", "show me {} {{}}", "give me {} {{}}",
        "can I have {} {{}}?", "Can you make {} {{}}?", "I'd love to see {} {{}}", "Let's see {} {{}}",
        "design {} {{}}",
    )
)  # fmt: skip
NEXT_REQUESTS: Final = (
    "now draw {}", "Now draw {}.", "Next, draw {}", "Another picture: {}", "draw another one: {}", "And now {}?",
    "Something else: draw {}", "Thanks! Now a picture of {}", "A new picture: {}", "Great. Please draw {} next.",
    "new image: {}", "Forget that. Draw {}", "start over with {}", "OK, draw me {}", "then make a picture of {}",
)  # fmt: skip
CHANGES: Final = (
    "{}", "{}", "{}.", "please {}", "Please {}.", "can you {}?", "Can you {}?", "could you {}", "Could you please {}?",
    "now {}", "Now {}", "Now {}.", "and {}", "And now {}", "ok, {}", "OK, now {}", "great, now {}", "Great! Now {}.",
    "nice, {}", "Nice! Can you {}?", "{} please", "{}, please", "I want you to {}", "I'd like you to {}", "next, {}",
    "hmm, {}", "then {}", "Thanks. Please {}", "Good, but {}", "almost, {}", "Lovely. Could you {}?", "let's {}",
    "change it: {}", "edit it: {}", "edit: {}", "One more thing: {}", "Would you {}?", "Perfect, now {}",
)  # fmt: skip
PLAIN_CHANGES: Final = (
    "{}", "{}.", "now {}", "Now {}.", "and {}", "And now {}", "ok, {}", "{}, please", "{} please", "change it: {}",
    "the same picture {}", "The same but {}", "again, but {}", "Great, now {}", "edit: {}", "how about {}?",
    "What about {}?", "nice, but {}", "Redo it {}", "then {}", "one more time, {}", "Make it again, {}",
)  # fmt: skip
PRONOUN_CHANGES: Final = (
    ("make it {}", "make the {it} {}"), ("paint it {}", "paint the {it} {}"), ("turn it {}", "turn the {it} {}"),
    ("colour it {}", "colour the {it} {}"), ("it should be {}", "the {it} should be {}"),
    ("change its colour to {}", "change the colour of the {it} to {}"), ("{} instead", "make the {it} {}"),
)  # fmt: skip
PRONOUN_MOVES: Final = (
    ("make it bigger", "make the {it} bigger"), ("make it smaller", "make the {it} smaller"),
    ("make it larger", "make the {it} larger"), ("make it small", "make the {it} small"),
    ("make it huge", "make the {it} huge"), ("move it to the left", "move the {it} to the left"),
    ("move it to the right", "move the {it} to the right"), ("move it to the middle", "move the {it} to the middle"),
)  # fmt: skip
NAMES: Final = (
    "image_generation", "image_generation", "generate_image", "create_image", "draw_picture", "make_picture", "draw",
    "text_to_image", "paint", "make_image", "render_image",
)  # fmt: skip
DESCRIPTIONS: Final = (
    "Draw a picture", "Generate an image", "Create an image from a description", "Draws pictures", "Make a picture", "",
    "Generate or edit an image", "Generates an image from a text prompt",
)  # fmt: skip
SCENERY: Final = (
    "at night", "at sunset", "by day", "in the snow", "at sea", "in the desert", "in the rain", "under the stars",
    "in the evening", "in black and white", "from above", "up close", "in winter", "in spring",
)  # fmt: skip
RESULTS: Final = (
    "done", "ok", "The picture is done.", '{"status": "completed"}', '{"status": "ok"}', "Image generated.",
    "The image was generated.", '{"result": "ok"}', "The picture was drawn.", "success", "",
)  # fmt: skip
FAILURES: Final = ("error: {}", '{{"error": "{}"}}', "failed: {}", '{{"status": "failed", "error": "{}"}}')
DRAWN: Final = "Here is your picture."
CHANGED: Final = "Here is the changed picture."
NOT_DRAWN: Final = "The picture could not be drawn. Please try again."
NO_TOOL: Final = (
    "I have no image tool in this chat, so I can't draw or change a picture. Send the image_generation tool along, or "
    "call /v1/images/generations."
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """An image tool, as a client declares it."""

    schema: dict[str, Any]
    name: str
    prompt: str
    action: bool

    def arguments(self, prompt: str, action: str) -> dict[str, str]:
        return {self.prompt: prompt} | ({"action": action} if self.action else {})


@dataclass(slots=True)
class Canvas:
    """The newest image: its scene, if it has one, what "it" refers to, and whether it was drawn or only requested."""

    scene: Scene | None = None
    it: str | None = None
    drawn: bool = False
    requested: bool = False


def sample_tool(rng: np.random.Generator) -> Tool:
    """A random image tool, most often the server's own."""
    if chance(rng, 0.4):
        return Tool(IMAGE_TOOL, "image_generation", "prompt", action=True)
    name = pick(rng, NAMES)
    prompt = pick(rng, ("prompt", "prompt", "prompt", "description", "text"))
    action = chance(rng, 0.3)
    properties: dict[str, Any] = {prompt: {"type": "string"}}
    if action:
        properties["action"] = {"type": "string", "enum": ["generate", "edit"]}
    required = list(properties)
    if chance(rng, 0.3):
        properties["size"] = {"type": "string"}
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": pick(rng, DESCRIPTIONS), "parameters": parameters}
    return Tool({"type": "function", "function": function}, name, prompt, action)


def ask_image(script: Script, tool: Tool | None, canvas: Canvas) -> None:
    text = _subject(script, canvas)
    frames = (
        NEXT_REQUESTS
        if canvas.drawn and chance(script.rng, 0.6)
        else pick(script.rng, (DRAW_REQUESTS, DRAW_REQUESTS, ORDERS, IMAGE_REQUESTS))
    )
    script.user(_filled(script, frames, text))
    canvas.requested = True
    if tool is None:
        script.answer("no tool", NO_TOOL)
        return
    canvas.drawn = True
    script.call("picture", tool.name, tool.arguments(text, "generate"))
    _closing(script, DRAWN)


def ask_change(script: Script, tool: Tool | None, canvas: Canvas) -> None:
    """A change to the newest image, or to one that the user sends."""
    text, prompt = _change(script, canvas)
    script.user(text if canvas.drawn or (tool is None and canvas.requested) else f"[image] {text}")
    canvas.requested = True
    if tool is None:
        script.answer("no tool", NO_TOOL)
        return
    canvas.drawn = True
    script.call("edit", tool.name, tool.arguments(prompt, "edit"))
    _closing(script, CHANGED)


def _closing(script: Script, text: str) -> None:
    if chance(script.rng, 0.2):
        return  # some clients never return a result, and go on with the next message
    if chance(script.rng, 0.1):
        script.result(pick(script.rng, FAILURES).format(phrase(script.rng)))
        script.answer("result", NOT_DRAWN)
        return
    script.result(pick(script.rng, RESULTS))
    script.answer("result", text)


def _subject(script: Script, canvas: Canvas) -> str:
    """What to draw: a scene of the world, or anything else."""
    rng = script.rng
    if chance(rng, 0.35):
        canvas.scene, (text, canvas.it) = None, _other_subject(rng)
        return text
    while True:
        scene = sample_scene(rng)
        text = _plain(caption(scene, rng).text)
        if (script.split == "held-out") == ("held-out" in (scene_split(scene), text_split(text))):
            canvas.scene = scene
            canvas.it = _noun(scene, text) if len(scene.things) == 1 else None
            return text


def _plain(text: str) -> str:
    """A caption without its request and its full stop."""
    for request in REQUESTS:
        asking = request.removesuffix("{}")
        if text.lower().startswith(asking.lower()):
            text = text[len(asking) :]
    return text[0].lower() + text[1:].rstrip(".")


def _noun(scene: Scene, text: str) -> str | None:
    """What the caption calls its only thing."""
    nouns = [noun for noun in wording.NOUNS[scene.things[0].kind] if noun in text.lower()]
    return max(nouns, key=len) if nouns else None


def _other_subject(rng: np.random.Generator) -> tuple[str, str]:
    """Something outside the scene world, and its name."""
    noun = invented_word(rng) if chance(rng, 0.4) else pick(rng, NOUNS)
    text = with_article(f"{pick(rng, ADJECTIVES)} {noun}" if chance(rng, 0.6) else noun)
    if chance(rng, 0.6):
        text = f"{text} {pick(rng, PREPOSITIONS)} {with_article(phrase(rng, 2))}"
    if chance(rng, 0.08):
        text = f'{text} with a sign that says "{phrase(rng, 3)}"'
    elif chance(rng, 0.15):
        text = f"{text} {pick(rng, ('for', 'called', 'with', 'named'))} {person(rng)}"
    elif chance(rng, 0.1):
        text = f"{text}, {whole(rng)} {phrase(rng, 2)}"
    return text, noun


def _change(script: Script, canvas: Canvas) -> tuple[str, str]:
    """The user's message, and the instruction in it."""
    rng = script.rng
    if canvas.drawn and canvas.it is not None and chance(rng, 0.2):
        spoken, meant = pick(rng, PRONOUN_MOVES) if chance(rng, 0.35) else pick(rng, PRONOUN_CHANGES)
        colour = pick(rng, COLOURS)
        spoken, meant = spoken.format(colour), meant.format(colour, it=canvas.it)
        return _filled(script, _frames(spoken), spoken), meant
    text = _other_change(rng) if canvas.scene is None else _world_change(script, canvas, canvas.scene)
    return _filled(script, _frames(text), text), text


def _frames(text: str) -> tuple[str, ...]:
    return CHANGES if text.split()[0] in COMMANDS | {"colour"} else PLAIN_CHANGES


def _world_change(script: Script, canvas: Canvas, scene: Scene) -> str:
    while True:
        edit = sample_edit(script.rng, scene)
        if edit is None or edit.reference is not None:
            continue
        text = _instruction(edit.instruction)
        if script.split == "train" and text_split(text) == "held-out":
            continue
        canvas.scene = edit.after
        same = len(edit.after.things) == 1 and edit.change not in ("replace", "remove", "insert")
        canvas.it = canvas.it if same else None
        return text


def _instruction(text: str) -> str:
    """An instruction without its polite frame."""
    text = text[0].lower() + text[1:]
    for frame in POLITE_FRAMES:
        before, after = frame.lower().split("{}")
        if frame != "{}" and text.startswith(before) and text.endswith(after):
            text = text[len(before) : len(text) - len(after)]
    return text


def _other_change(rng: np.random.Generator) -> str:
    """A change to an image outside the scene world."""
    thing, other = phrase(rng, 2), with_article(phrase(rng, 2))
    return pick(
        rng,
        (
            f"add {other}", f"remove the {thing}", f"make the {thing} {pick(rng, COLOURS)}",
            f"replace the {thing} with {other}",
            f"put {other} {pick(rng, PREPOSITIONS)} the {thing}", f"in the style of {person(rng)}", f"with {other}",
            f"make the {thing} {pick(rng, ADJECTIVES)}", f"without the {thing}", f"move the {thing} to the left",
            pick(rng, SCENERY), pick(rng, SCENERY),
        ),
    )  # fmt: skip


def _filled(script: Script, frames: tuple[str, ...], text: str) -> str:
    """The subject in a random frame; a subject that comes first sometimes gets a capital."""
    frame = script.wording_with_unknown_word(frames)
    filled = frame.format(text)
    if frame.startswith("{}") and chance(script.rng, 0.4):
        filled = filled[0].upper() + filled[1:]
    return filled
