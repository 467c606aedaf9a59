"""Turns without a tool: greetings, the server, the scene world, sums, repeating words, and what it does not know."""

from typing import Final

import numpy as np

from starters.chat.conversations import words
from starters.chat.conversations.script import Script
from starters.chat.conversations.topics import TOPICS
from starters.chat.conversations.words import chance, invented_word, person, phrase, pick

REPEAT_REQUESTS: Final = (
    "say {}", "Say {}", "say {}.", "Say: {}", "say exactly: {}", "Say exactly {}", "repeat {}", "Repeat: {}",
    "repeat after me: {}",
    "Repeat after me: {}", "Reply with {}", "Reply with exactly: {}", "reply with only {}",
    "Reply only with the word {}",
    "Respond with {}", "respond with the word {}", "Answer with {}", "answer only: {}", "echo {}", "Echo: {}",
    'Say "{}"', 'say "{}" please',
    'Repeat "{}"', 'Reply with "{}"', "write {}", "Write the words {}", "Please say {}", "Just say {}",
    "Can you say {}?", "print {}",
    "Output {}", "Say the word {}", "type {}", "Please repeat: {}", "Say back to me: {}",
)  # fmt: skip
SUMS: Final = {
    "+": ("{} + {}", "{}+{}", "What is {} + {}?", "{} plus {}", "what is {} plus {}?", "How much is {} + {}?",
         "how much is {} plus {}",
          "Add {} and {}", "What do {} and {} make?", "{} + {} = ?", "Calculate {} + {}", "can you add {} and {}?",
          "tell me {} plus {}"),
    "-": ("{} - {}", "{}-{}", "What is {} - {}?", "{} minus {}", "what is {} minus {}?", "How much is {} - {}?",
         "how much is {} minus {}",
          "{} - {} = ?", "Calculate {} - {}", "what is {} take away {}", "tell me {} minus {}"),
    "x": ("{} x {}", "{} * {}", "What is {} x {}?", "{} times {}", "what is {} times {}?", "How much is {} times {}?",
         "how much is {} * {}",
          "Multiply {} by {}", "{} x {} = ?", "Calculate {} times {}", "what is {} multiplied by {}",
          "tell me {} times {}"),
}  # fmt: skip
TOO_LARGE: Final = "That is too large for me: I only do small sums."
NUMBERS: Final = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
COUNTS: Final = (
    "count to {}",
    "Count to {}.",
    "Count from 1 to {}",
    "count up to {}",
    "Please count to {}",
    "can you count to {}?",
)
UNKNOWN_QUESTIONS: Final = (
    "who is {}?", "Who was {}?", "what is {}?", "What is the {}?", "explain {}", "Explain {} to me.",
    "tell me about {}", "How does {} work?",
    "why is {} so {}?", "Write an essay about {}", "write code for {}", "How do I cook {}?",
    "what do you think of {}?", "when did {} begin?",
    "Where is {}?", "What is the capital of {}?", "how old is {}?", "Do you like {}?", "Summarize {}",
    "Give me a recipe for {}",
    "What is the difference between {} and {}?", "How many {} are there?", "solve {}", "Is {} better than {}?",
    "who invented {}?",
    "Write a python function for {}", "How do I fix {}?", "Should I buy {}?", "what happened to {}?",
    "I have a problem with {}",
    "My {} is broken", "I feel {}", "Define {}", "What does {} mean?", "Who won the {}?", "recommend a {}",
    "Can {} be {}?", "plan a trip to {}",
    "translate {}", "What's the meaning of {}?", "proofread {}", "Debug my {}", "Are there {} in {}?",
    "Which {} is the best?",
    "Can you write a {}?", "compare {} and {}", "Give me advice about {}", "List ten {}", "How far is {} from {}?",
)  # fmt: skip
UNKNOWN: Final = (
    "I am only a tiny starter model, so I don't know that. A larger chat model can take my place: see weights.md.",
)
NAMINGS: Final = (
    "my name is {}",
    "My name is {}.",
    "I am {}",
    "I'm {}",
    "Hi, I'm {}!",
    "Hello, my name is {}.",
    "call me {}",
    "You can call me {}.",
)
NAME_QUESTIONS: Final = (
    "what is my name?",
    "What's my name?",
    "do you remember my name?",
    "Who am I?",
    "tell me my name",
    "say my name",
)


def small_talk(script: Script) -> None:
    questions, answers = pick(script.rng, TOPICS)
    script.user(_typed(script.rng, script.wording(questions)))
    script.answer("chat", answers)


def repeat_back(script: Script) -> None:
    """A request to repeat words exactly."""
    rng = script.rng
    text = (
        phrase(rng, 6)
        if chance(rng, 0.75)
        else pick(rng, (person(rng), words.city(rng), words.code(rng), str(words.whole(rng))))
    )
    if chance(rng, 0.15):
        text = text[0].upper() + text[1:] + pick(rng, ("!", ".", ""))
    script.user(script.wording_with_unknown_word(REPEAT_REQUESTS).format(text))
    script.answer("say", text)


def arithmetic(script: Script) -> None:
    """A small sum, sometimes one that is too large, sometimes counting."""
    rng = script.rng
    if chance(rng, 0.06):
        last = 2 + int(rng.integers(9))
        script.user(script.wording(COUNTS).format(last))
        script.answer("sum", ", ".join(str(n) for n in range(1, last + 1)) + ".")
        return
    sign = pick(rng, tuple(SUMS))
    limit = 6 if sign == "x" else 11
    a, b = int(rng.integers(limit)), int(rng.integers(limit))
    if sign == "-" and a < b:
        a, b = b, a
    if chance(rng, 0.08):
        a, b = 100 + words.whole(rng), 21 + words.whole(rng)
        script.user(script.wording(SUMS[sign]).format(a, b))
        script.answer("sum", TOO_LARGE)
        return
    result = {"+": a + b, "-": a - b, "x": a * b}[sign]
    in_words = chance(rng, 0.1)
    script.user(script.wording(SUMS[sign]).format(*((NUMBERS[a], NUMBERS[b]) if in_words else (a, b))))
    script.answer("sum", f"{a} {sign} {b} = {result}.")


def unknown(script: Script) -> None:
    """A question that it cannot answer."""
    wording = script.wording_with_unknown_word(UNKNOWN_QUESTIONS)
    blanks = wording.count("{}")
    script.user(_typed(script.rng, wording.format(*(_topic(script.rng) for _ in range(blanks)))))
    script.answer("unknown", UNKNOWN)


def introduce(script: Script) -> None:
    """The user's name, and a question about it at once or later."""
    name = person(script.rng)
    script.user(script.wording(NAMINGS).format(name))
    script.answer("chat", f"Nice to meet you, {name}.")
    if chance(script.rng, 0.3):
        small_talk(script)
    script.user(script.wording(NAME_QUESTIONS))
    script.answer("say", f"Your name is {name}.")


def _topic(rng: np.random.Generator) -> str:
    pool = pick(rng, (words.TOPICS, words.NOUNS, words.CITIES, words.PEOPLE, None, None))
    if pool is None:
        return invented_word(rng) if chance(rng, 0.3) else phrase(rng, 4)
    return pick(rng, pool)


def _typed(rng: np.random.Generator, text: str) -> str:
    """Sometimes without the mark at the end, or in another case."""
    if chance(rng, 0.15):
        text = text.rstrip("?.!")
    if chance(rng, 0.1):
        return text.lower()
    return text[0].upper() + text[1:] if chance(rng, 0.1) else text
