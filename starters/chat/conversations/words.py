"""Fillers of wordings. Invented words train the model to copy what it has never seen."""

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS: Final = _words(
    "dragon dog horse bird fish elephant tiger rabbit owl fox bear whale robot castle bridge river forest garden "
    "street market bicycle train plane bus truck balloon kite lamp chair table bottle cup apple banana cake pizza "
    "guitar piano drum book clock phone camera hat shoe shirt umbrella key door window ladder wheel engine island "
    "volcano waterfall cave planet comet cloud rainbow storm snowman pumpkin mushroom cactus leaf rose sunflower "
    "butterfly spider frog penguin panda monkey wolf lion knight wizard pirate king queen dancer doctor baker "
    "farmer sailor astronaut child teacher painter village tower windmill tent campfire crown ring sword shield "
    "mirror candle basket barrel anchor"
)
ADJECTIVES: Final = _words(
    "old new shiny wooden golden silver striped broken happy sad sleepy angry tall short round square soft fast "
    "slow ancient modern foggy sunny rainy dark bright quiet crowded empty wild friendly brave curious giant tiny "
    "colourful"
)
PREPOSITIONS: Final = ("on", "under", "near", "behind", "in front of", "inside", "next to", "above", "with", "beside")
PEOPLE: Final = _words(
    "Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Ruth Sam Tina Victor "
    "Wendy Yara Li Chen Maria Omar Priya Ahmed Sofia Ivan Yuki Lena Hugo Nina Oscar Zoe Alice Bob Charlie Dana"
)
CITIES: Final = (
    *_words(
        "Paris London Berlin Madrid Rome Vienna Tokyo Beijing Delhi Cairo Lagos Lima Oslo Dublin Lisbon Prague Warsaw "
        "Athens Zurich Geneva Boston Chicago Seattle Toronto Sydney Shanghai Nairobi Helsinki Munich Hamburg Lyon "
        "Kyoto Seoul"
    ),
    "New York",
    "San Francisco",
    "Hong Kong",
    "Buenos Aires",
    "Cape Town",
    "Mexico City",
)
TOPICS: Final = _words(
    "history music chemistry football politics cooking gardening money taxes medicine love philosophy mathematics "
    "grammar fashion weather travel religion law business economics biology physics astronomy poetry cinema chess "
    "yoga fishing marketing photography architecture psychology insurance mortgages python javascript databases "
    "networks linux docker"
)
VERBS: Final = _words(
    "set get start stop open close find book order send create delete update check show play pause rename move "
    "copy print scan lock unlock charge reserve cancel archive publish assign record measure import export merge "
    "paint sort"
)
THINGS: Final = _words(
    "volume light lamp door timer alarm song playlist file folder report ticket room table seat meeting task note "
    "order invoice account profile message channel photo window heater fan pump robot camera printer project "
    "server backup label score level mode price plan route parcel sensor device screen layer sample batch record "
    "page list queue"
)
ATTRIBUTES: Final = _words(
    "name title level speed size colour color mode count amount limit date time place city label text topic owner "
    "target source path status type kind code key value query message number user group tag unit format language "
    "room"
)
ONSETS: Final = _words("b c d f g h j k l m n p r s t v w z br cr dr fl gr kl pl pr sk sn st tr th sh ch qu zw")
VOWELS: Final = _words("a e i o u a e i o ai ea oo y")
CODAS: Final = ("", "", "", "n", "r", "l", "s", "t", "x", "m", "k", "nd", "rt", "ng", "sh", "zz")


def pick(rng: np.random.Generator, values: Sequence[T]) -> T:
    """A random value."""
    return values[int(rng.integers(len(values)))]


def chance(rng: np.random.Generator, share: float) -> bool:
    """True with this probability."""
    return bool(rng.random() < share)


def invented_word(rng: np.random.Generator, *, capital: bool = False) -> str:
    """An invented word, such as blorpin."""
    syllables = 1 + int(rng.integers(3))
    word = "".join(pick(rng, ONSETS) + pick(rng, VOWELS) + pick(rng, CODAS) for _ in range(syllables))
    return word.capitalize() if capital else word


def any_word(rng: np.random.Generator) -> str:
    """A common word, or an invented one."""
    pool = pick(rng, (NOUNS, NOUNS, ADJECTIVES, TOPICS, THINGS, None, None, None))
    return invented_word(rng) if pool is None else pick(rng, pool)


def phrase(rng: np.random.Generator, max_words: int = 4) -> str:
    """One to `max_words` words."""
    return " ".join(any_word(rng) for _ in range(1 + int(rng.integers(max_words))))


def person(rng: np.random.Generator) -> str:
    """A first name, sometimes with a last one, sometimes invented."""
    first = invented_word(rng, capital=True) if chance(rng, 0.4) else pick(rng, PEOPLE)
    return f"{first} {invented_word(rng, capital=True)}" if chance(rng, 0.25) else first


def city(rng: np.random.Generator) -> str:
    """A city, or an invented name."""
    return invented_word(rng, capital=True) if chance(rng, 0.4) else pick(rng, CITIES)


def whole(rng: np.random.Generator) -> int:
    """A whole number; mostly small."""
    return int(rng.integers(10 ** int(rng.choice([1, 2, 2, 2, 3, 4]))))


def decimal(rng: np.random.Generator) -> float:
    """A number with one decimal, rarely with two."""
    digits = 1 + int(chance(rng, 0.2))
    return float(round(int(rng.integers(1, 100)) + int(rng.integers(1, 10**digits)) / 10**digits, digits))


def code(rng: np.random.Generator) -> str:
    """A code such as AB-1234."""
    letters = "".join(chr(65 + int(rng.integers(26))) for _ in range(2 + int(rng.integers(2))))
    return f"{letters}{pick(rng, ('-', '', '_'))}{whole(rng)}"


def email(rng: np.random.Generator) -> str:
    return f"{pick(rng, PEOPLE).lower()}@{invented_word(rng)}.{pick(rng, ('com', 'org', 'net'))}"


def date(rng: np.random.Generator) -> str:
    """A date, as a number or in words."""
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "tomorrow", "today")
    year, month, day = 2020 + int(rng.integers(12)), 1 + int(rng.integers(12)), 1 + int(rng.integers(28))
    return f"{year}-{month:02}-{day:02}" if chance(rng, 0.5) else pick(rng, days)


def clock(rng: np.random.Generator) -> str:
    hour, minute = int(rng.integers(24)), 5 * int(rng.integers(12))
    return f"{hour}:{minute:02}" if chance(rng, 0.6) else f"{hour % 12 + 1} {pick(rng, ('am', 'pm'))}"
