"""Functions as users declare them, each with its wordings. Names of arguments vary: they are read from the schema."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from starters.chat.conversations import words
from starters.chat.conversations.words import chance, phrase, pick

Type = Literal["string", "integer", "number", "boolean", "enum"]
Maker = Callable[[np.random.Generator], Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: the names it goes by, its type, and how a value is made. An enum's values are its choices."""

    names: tuple[str, ...]
    type: Type
    make: Maker
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A function: names, description, arguments by their key in the wordings."""

    names: tuple[str, ...]
    description: str
    slots: dict[str, Argument]
    wordings: tuple[str, ...]


def _text(*names: str, make: Maker = lambda rng: phrase(rng, 3)) -> Argument:
    return Argument(names, "string", make)


def _count(*names: str) -> Argument:
    return Argument(names, "integer", words.whole)


def _amount(*names: str) -> Argument:
    return Argument(names, "number", lambda rng: words.decimal(rng) if chance(rng, 0.5) else words.whole(rng))


def _choice(*choices: str, names: tuple[str, ...]) -> Argument:
    return Argument(names, "enum", lambda rng: pick(rng, choices), choices)


LANGUAGES: Final = (
    "French", "German", "Spanish", "Italian", "Chinese", "Japanese", "Arabic", "Hindi", "Dutch", "Polish", "Greek",
    "Korean",
)  # fmt: skip
CURRENCIES: Final = ("USD", "EUR", "CNY", "JPY", "GBP", "CHF", "INR", "BRL", "KRW", "SEK")
ROOMS: Final = (
    "kitchen", "bedroom", "bathroom", "garage", "hall", "office", "garden", "living room", "cellar", "attic",
)  # fmt: skip

CITY: Final = _text("city", "location", "place", "town", make=words.city)
PERSON: Final = _text("name", "person", "contact", "recipient", "to", make=words.person)
LANGUAGE: Final = _text("language", "target", "to", "target_language", make=lambda rng: pick(rng, LANGUAGES))
SWITCH: Final = Argument(("on", "enabled", "state", "active"), "boolean", lambda rng: chance(rng, 0.5))
UNIT: Final = _choice("celsius", "fahrenheit", names=("unit", "units", "scale"))

FUNCTIONS: Final = (
    Function(("get_weather", "weather", "get_current_weather", "current_weather"), "Look up the weather",
        {"city": CITY}, (
        "What is the weather in {city}?", "what's the weather like in {city}", "weather in {city}",
        "How is the weather in {city}?",
        "Is it raining in {city}?", "will it rain in {city} today?", "Tell me the weather for {city}.",
        "How warm is it in {city}?",
        "weather {city}", "Do I need an umbrella in {city}?", "Check the weather in {city}, please",
        "is it cold in {city}?",
        "What will the weather be in {city}?", "weather for {city} please", "Show me the weather in {city}",
        "Is it sunny in {city}?", "I want to know the weather in {city}", "How does the weather look in {city}?",
        "Should I take a coat to {city}?", "Get the weather of {city}", "What about the weather in {city}?",
        "give me the forecast for {city}", "Is there snow in {city}?", "Look up the weather for {city}",
    )),
    Function(("get_temperature", "get_weather", "temperature"), "Get the temperature", {"city": CITY, "unit": UNIT}, (
        "What is the temperature in {city} in {unit}?", "temperature in {city}, {unit}",
        "How warm is it in {city} in {unit}?",
        "Give me the weather in {city} in {unit}", "{city} weather in {unit} please",
        "How many degrees {unit} in {city}?",
        "Tell me the temperature of {city} in {unit}", "I want the temperature in {city}, in {unit}",
        "How cold is it in {city}? In {unit}, please", "weather of {city} ({unit})",
        "Use {unit}: how warm is it in {city}?", "Get me {city} in {unit}",
    )),
    Function(("get_time", "current_time", "get_local_time"), "Tell the local time", {"city": CITY}, (
        "What time is it in {city}?", "time in {city}", "Tell me the time in {city}",
        "What's the local time in {city}?",
        "How late is it in {city}?", "current time in {city} please", "Do you know what time it is in {city}?",
        "What's the time in {city}?", "Which time do they have in {city}?", "Give me the time in {city}",
        "the time in {city}, please", "Get the local time of {city}", "I want to know the time in {city}",
        "Is it late in {city}?", "Show the time for {city}",
    )),
    Function(("add", "add_numbers", "sum", "plus"), "Add two numbers", {"a": _amount("a", "x", "first"),
        "b": _amount("b", "y", "second")}, (
        "Add {a} and {b}", "What is {a} plus {b}?", "add {a} to {b}", "{a} + {b}", "Use the tool to add {a} and {b}",
        "Compute {a} + {b}", "sum of {a} and {b}", "How much is {a} and {b} together?",
        "Sum {a} and {b}", "Please add {a} and {b}", "Can you add {a} and {b}?", "What do {a} and {b} make?",
        "Give me the sum of {a} and {b}", "Put {a} and {b} together", "Take {a} and add {b}",
    )),
    Function(("multiply", "times", "product"), "Multiply two numbers", {"a": _amount("a", "x", "first"),
        "b": _amount("b", "y", "second")}, (
        "Multiply {a} by {b}", "What is {a} times {b}?", "{a} * {b}", "multiply {a} and {b}",
        "the product of {a} and {b}",
        "Compute {a} times {b}", "how much is {a} x {b}",
        "Please multiply {a} with {b}", "Can you multiply {a} by {b}?", "What do you get for {a} times {b}?",
        "Give me the product of {a} and {b}", "Take {a} times {b}", "{a} times {b} please",
        "Work out {a} multiplied by {b}",
    )),
    Function(("search", "web_search", "search_web", "find"), "Search the web", {"query": _text("query", "q", "text",
        "term")}, (
        "Search for {query}", "search the web for {query}", "Look up {query}", "Find {query}", "google {query}",
        "Can you search for {query}?", "find me something about {query}", "Please look up {query}.",
        "I need to find {query}",
        "Do a search for {query}", "I am looking for {query}", "web search: {query}",
        "What does the web say about {query}?", "Show me results for {query}", "Could you look for {query}?",
        "Use the search for {query}", "search {query}", "Get me pages about {query}",
    )),
    Function(("translate", "translate_text"), "Translate a text", {"text": _text("text", "phrase", "sentence"),
        "to": LANGUAGE}, (
        'Translate "{text}" to {to}', 'translate "{text}" into {to}', 'What is "{text}" in {to}?',
        'How do you say "{text}" in {to}?',
        'Say "{text}" in {to}', "Translate {text} to {to}", 'Please translate to {to}: "{text}"',
        'I need "{text}" in {to}', 'Put "{text}" into {to}', "translate into {to}: {text}",
        'Can you translate "{text}" to {to}?', 'the {to} for "{text}", please', 'Give me "{text}" in {to}',
        'How would one write "{text}" in {to}?',
    )),
    Function(("send_message", "message", "send_text"), "Send a message", {"name": PERSON, "text": _text("text",
        "message", "body")}, (
        'Send {name} the message "{text}"', 'Tell {name} "{text}"', 'Write to {name}: "{text}"',
        'Message {name}: "{text}"',
        'send "{text}" to {name}', "Text {name} that {text}", 'Please send a message to {name} saying "{text}"',
        'Let {name} know: "{text}"', 'Give {name} the message "{text}"', 'I want to tell {name} "{text}"',
        'Can you write "{text}" to {name}?', "a message for {name}: {text}", 'Please text {name} "{text}"',
        'Ask {name} "{text}"',
    )),
    Function(("send_email", "email", "mail"), "Send an e-mail",
        {"to": _text("to", "address", "recipient", make=words.email), "subject": _text("subject", "title")}, (
        'Send an email to {to} with the subject "{subject}"', 'email {to} about {subject}',
        'Mail {to}, subject {subject}',
        "Write an email to {to} about {subject}", 'Send a mail to {to}: "{subject}"', "e-mail {to}, subject: {subject}",
        "I want to write to {to} about {subject}", 'Please email {to} with the subject "{subject}"',
        "Can you send a mail to {to} about {subject}?", "new mail to {to}: {subject}",
        "Drop {to} a mail about {subject}", 'Compose a mail to {to}, subject "{subject}"', "email {to}: {subject}",
    )),
    Function(("set_timer", "start_timer", "timer"), "Start a timer", {"minutes": _count("minutes", "duration",
        "length")}, (
        "Set a timer for {minutes} minutes", "timer {minutes} minutes", "Start a {minutes} minute timer",
        "Wake me in {minutes} minutes",
        "Count down {minutes} minutes", "Please set a {minutes} minutes timer", "Remind me in {minutes} minutes",
        "I need a timer of {minutes} minutes", "Can you set a timer for {minutes} minutes?",
        "Give me {minutes} minutes", "Let it run for {minutes} minutes", "a timer for {minutes} minutes, please",
        "Call me in {minutes} minutes", "{minutes} minutes from now, ring", "Time {minutes} minutes",
    )),
    Function(("set_alarm", "alarm", "wake_up"), "Set an alarm", {"time": _text("time", "at", "clock",
        make=words.clock)}, (
        "Set an alarm for {time}", "wake me up at {time}", "alarm at {time}", "Wake me at {time}, please",
        "I need an alarm at {time}",
        "Please set my alarm to {time}",
        "Ring at {time}", "I have to get up at {time}", "Can you wake me at {time}?", "the alarm to {time}",
        "Let the alarm ring at {time}", "Get me up at {time}", "Set the clock to wake me at {time}",
        "alarm for {time} please",
    )),
    Function(("play_music", "play_song", "play"), "Play music", {"song": _text("song", "title", "track", "query")}, (
        "Play {song}", 'Play the song "{song}"', "play {song} please", "Put on {song}", "I want to hear {song}",
        "Start playing {song}", "Can you play {song}?",
        "Let me hear {song}", "I would like to listen to {song}", "some {song}, please", "music: {song}",
        "Can I hear {song}?", 'Please play "{song}"', "Turn on {song}", "Let's listen to {song}",
    )),
    Function(("switch_light", "set_light", "light"), "Switch a light",
        {"room": _text("room", "where", "lamp", make=lambda rng: pick(rng, ROOMS)), "on": SWITCH}, (
        "Turn {on} the light in the {room}", "switch the {room} light {on}", "Light {on} in the {room}",
        "{room} light {on}",
        "Please turn the {room} light {on}", "Turn the light {on} in the {room}",
        "Set the {room} light {on}", "{on} with the light in the {room}",
        "Can you switch {on} the light in the {room}?", "I want the {room} light {on}",
        "the light of the {room} {on}", "Make the {room} light go {on}", "Lights {on} in the {room}, please",
    )),
    Function(("set_thermostat", "set_temperature", "heat"), "Set the heating", {"degrees": _amount("degrees",
        "temperature", "value")}, (
        "Set the temperature to {degrees} degrees", "Make it {degrees} degrees", "heating to {degrees}",
        "set the thermostat to {degrees}",
        "I want {degrees} degrees in here", "Change the heating to {degrees} degrees",
        "Heat to {degrees} degrees", "I would like it at {degrees} degrees", "Can you set {degrees} degrees?",
        "Put the heating at {degrees}", "{degrees} degrees, please", "It should be {degrees} degrees here",
        "Turn the temperature to {degrees} degrees", "Keep it at {degrees} degrees",
    )),
    Function(("get_stock_price", "stock_price", "quote"), "Get a share price", {"symbol": _text("symbol", "ticker",
        "stock",
        make=lambda rng: words.invented_word(rng)[:4].upper())}, (
        "What is the price of {symbol}?", "stock price of {symbol}", "How much is {symbol} stock?",
        "{symbol} stock price", "quote {symbol}",
        "How is {symbol} doing?", "Get me the share price of {symbol}",
        "What does {symbol} cost?", "the price of {symbol}, please", "Show me {symbol} at the stock market",
        "How are {symbol} shares doing?", "Look up the share {symbol}", "What is {symbol} trading at?",
        "Get the quote of {symbol}", "How high is {symbol}?",
    )),
    Function(("convert_currency", "exchange", "convert_money"), "Convert money",
        {"amount": _amount("amount", "value", "sum"), "from": _choice(*CURRENCIES, names=("from", "source", "base")),
         "to": _choice(*CURRENCIES, names=("to", "target", "into"))}, (
        "Convert {amount} {from} to {to}", "How much is {amount} {from} in {to}?", "{amount} {from} in {to}",
        "change {amount} {from} into {to}",
        "What are {amount} {from} worth in {to}?", "exchange {amount} {from} for {to}",
        "I want to change {amount} {from} to {to}", "What is {amount} {from} in {to}?",
        "Give me {amount} {from} in {to}", "Can you convert {amount} {from} into {to}?",
        "{amount} {from} to {to} please", "Turn {amount} {from} into {to}",
        "I have {amount} {from}, how many {to} is that?",
    )),
    Function(("book_table", "reserve_table", "make_reservation"), "Book a table",
        {"people": _count("people", "guests", "seats", "party_size"), "time": _text("time", "when", "at",
        make=words.clock),
         "name": _text("name", "guest", "for_name", make=words.person)}, (
        "Book a table for {people} at {time} for {name}", "Table for {people} people at {time}, name {name}",
        "Reserve {people} seats at {time} for {name}",
        "I'd like a table for {people} at {time}, the name is {name}",
        "Please book {people} people at {time} under {name}",
        "We are {people}, a table at {time} for {name}", "Can you book a table at {time} for {people}, name {name}?",
        "a reservation for {name}: {people} people, {time}", "Get us a table for {people} at {time}, under {name}",
        "{name} wants a table for {people} at {time}", "Make a booking for {people} at {time}, {name}",
        "Reserve a table at {time} for {people} in the name of {name}",
        "dinner for {people} at {time}, the name is {name}",
    )),
    Function(("create_event", "add_event", "schedule_meeting"), "Put an event into the calendar",
        {"title": _text("title", "name", "subject"), "date": _text("date", "day", "when", make=words.date)}, (
        'Create an event "{title}" on {date}', "Put {title} in my calendar on {date}", "Schedule {title} for {date}",
        "add {title} on {date}",
        'New event: "{title}", {date}', "I have {title} on {date}, put it in the calendar",
        "Remember that {title} is on {date}", "On {date} there is {title}, put it in",
        "Can you put {title} on {date}?", "Plan {title} on {date}", "I want {title} in the calendar for {date}",
        'Set up "{title}" on {date}', "calendar: {title}, {date}", "Note {title} for {date}",
        "There is {title} on {date}, add it to my calendar",
    )),
    Function(("create_reminder", "remind_me", "add_reminder"), "Make a reminder",
        {"text": _text("text", "what", "task"), "time": _text("time", "when", "at", make=words.clock)}, (
        "Remind me of {text} at {time}", "remind me at {time} of {text}", "Reminder at {time}: {text}",
        "Set a reminder for {text} at {time}",
        'At {time}, remind me: "{text}"', "I must not forget {text} at {time}",
        "I need to think of {text} at {time}", "Can you remind me at {time} of {text}?",
        "{time}: remind me of {text}", "Let me know about {text} at {time}", 'A reminder "{text}" at {time}, please',
        "Make me remember {text} at {time}", "Don't let me forget {text} at {time}",
    )),
    Function(("add_todo", "create_task", "add_task"), "Add a task to the list", {"task": _text("task", "title", "text",
        "item")}, (
        "Add {task} to my list", "put {task} on the list", "new task: {task}", "Add a task: {task}", "to do: {task}",
        "Note down {task}",
        "I have to do {task}, add it", "Please put {task} on my to-do list",
        "I need to do {task}, note it", "I should do {task}, put it down", "Can you add {task} to the list?",
        "One more for my list: {task}", "Make a note: {task}", "list: {task}", "Write down {task}",
        "Remember the task {task}", "I must do {task}, add that", "todo {task}",
    )),
    Function(("get_order", "order_status", "track_order"), "Look up an order", {"id": _text("id", "order", "order_id",
        "number", make=words.code)}, (
        "Where is my order {id}?", "What is the status of order {id}?", "track order {id}", "order {id}?",
        "Has {id} been shipped?",
        "Please check the order {id}", "I am waiting for {id}, where is it?",
        "Look up order {id}", "Can you find my order {id}?", "When does {id} arrive?", "How far is order {id}?",
        "Tell me about order {id}", "the state of {id}, please", "I ordered {id}, is it here soon?",
        "Show me order {id}",
    )),
    Function(("get_user", "find_user", "lookup_user"), "Look up a user", {"id": _count("id", "user_id", "number")}, (
        "Get user {id}", "Who is user {id}?", "Look up the user with id {id}", "show me user number {id}", "user {id}",
        "Find the user {id}",
        "I need user {id}", "Can you find user {id}?", "the user {id} please", "Tell me about user {id}",
        "Fetch the user with number {id}", "What is the name of user {id}?", "Show user {id}",
    )),
    Function(("roll_dice", "roll", "dice"), "Roll dice", {"sides": _count("sides", "faces", "max")}, (
        "Roll a die with {sides} sides", "roll a d{sides}", "Throw a {sides}-sided die", "a {sides} sided die please",
        "Roll {sides} sides",
        "Can you roll a {sides}-sided die?", "Throw the dice, {sides} sides", "I want to roll {sides} sides",
        "dice with {sides} faces", "Let a die with {sides} sides roll", "roll one with {sides} sides",
    )),
    Function(("delete_file", "remove_file", "erase"), "Delete a file", {"path": _text("path", "file", "name",
        "filename",
        make=lambda rng: f"{words.invented_word(rng)}.{pick(rng, ('txt', 'png', 'pdf', 'csv', 'py'))}")}, (
        "Delete {path}", "delete the file {path}", "Remove {path}", "Get rid of {path}", "Please erase {path}",
        "I don't need {path} any more",
        "I want {path} gone", "Can you delete {path}?", "Throw {path} away", "{path} can go",
        "Please remove the file {path}", "Nobody needs {path} now", "Clean up {path}", "Take {path} off the disk",
    )),
    Function(("order_pizza", "order_food", "pizza"), "Order a pizza",
        {"size": _choice("small", "medium", "large", names=("size",)), "topping": _text("topping", "kind", "flavour",
        make=words.any_word)}, (
        "Order a {size} pizza with {topping}", "I want a {size} {topping} pizza", "a {size} pizza, {topping} please",
        "Get me a {size} pizza with {topping} on it",
        "One {size} {topping} pizza", "pizza: {size}, {topping}",
        "Can I get a {size} pizza with {topping}?", "I'd like a {size} pizza with {topping}",
        "Make it a {size} pizza with {topping}", "{size} pizza, {topping}",
        "We want one {size} pizza, {topping} on top", "Bring me a {size} {topping} pizza",
        "{topping} pizza, {size}, please",
    )),
    Function(("set_mode", "change_mode", "mode"), "Change the mode", {"mode": _choice("quiet", "normal", "turbo",
        "eco", names=("mode", "level", "setting"))}, (
        "Switch to {mode} mode", "set the mode to {mode}", "{mode} mode please", "Go to {mode}",
        "Change to {mode} mode", "use the {mode} mode",
        "I want {mode} mode", "Can you go to {mode} mode?", "turn on {mode} mode", "Put it in {mode} mode",
        "mode: {mode}", "Please use {mode}", "make it {mode}",
    )),
    Function(("notify", "set_notifications", "notifications"), "Switch notifications", {"on": SWITCH}, (
        "Turn notifications {on}", "notifications {on}", "Switch {on} notifications",
        "Please turn {on} all notifications", "Set the notifications to {on}",
        "I want notifications {on}", "Can you turn {on} notifications?", "Put notifications {on}",
        "all notifications {on}, please", "Set notifications {on}", "Make notifications go {on}",
        "Notifications should be {on}",
    )),
    Function(("find_route", "directions", "get_route"), "Find a way", {"from": _text("from", "start", "origin",
        make=words.city),
        "to": _text("to", "end", "destination", make=words.city)}, (
        "How do I get from {from} to {to}?", "route from {from} to {to}", "Directions from {from} to {to}",
        "I want to go from {from} to {to}",
        "Find a way from {from} to {to}", "the way to {to} from {from}", "trains from {from} to {to}?",
        "Can you show me the way from {from} to {to}?", "Which way is it from {from} to {to}?",
        "Take me from {from} to {to}", "I am in {from} and must get to {to}", "Plan a trip from {from} to {to}",
        "How far is it from {from} to {to}?", "I travel from {from} to {to}, how?",
    )),
    Function(("calculate", "calculator", "evaluate"), "Evaluate an expression", {"expression": _text("expression",
        "formula", "input",
        make=lambda rng: f"{words.whole(rng)} {pick(rng, ('+', '-', '*', '/'))} {words.whole(rng)}")}, (
        "Calculate {expression}", "What is {expression}?", "compute {expression}", "{expression}",
        "Work out {expression}", "How much is {expression}?",
        "Use the calculator for {expression}",
        "Please calculate {expression}", "Can you compute {expression}?", "I need the result of {expression}",
        "Evaluate {expression}", "Give me {expression}", "Solve {expression}", "result of {expression}",
    )),
)  # fmt: skip


def json_type(slot: Argument) -> dict[str, Any]:
    """The argument's JSON schema."""
    return {"type": "string", "enum": list(slot.choices)} if slot.type == "enum" else {"type": slot.type}


def as_text(value: Any) -> str:
    """A value as it is written in a message."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
