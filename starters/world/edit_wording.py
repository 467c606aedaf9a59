"""Templates of editing instructions. {thing} is an object, {new} is what it becomes or what is added."""

from collections.abc import Mapping
from typing import Final, Literal

Change = Literal[
    "recolour", "resize", "add", "remove", "move", "swap", "replace", "sky", "ground", "backdrop", "clear backdrop",
    "light", "clear light", "style", "insert", "borrow sky", "borrow style",
]  # fmt: skip

EDIT_TEMPLATES: Final[Mapping[Change, tuple[str, ...]]] = {
    "recolour": (
        "make the {thing} {new}", "change the {thing} to {new}", "turn the {thing} {new}", "paint the {thing} {new}",
        "the {thing} should be {new}", "recolour the {thing} {new}", "change the colour of the {thing} to {new}",
        "color the {thing} {new}", "{a_new} {kind} instead", "{new} {kind}",
    ),
    "resize": ("make the {thing} {new}", "the {thing} should be {new}", "a {new} {thing} instead"),
    "add": (
        "add {new}", "add {new}", "put in {new}", "place {new} in the picture", "also draw {new}", "with {new} too",
        "there should also be {new}", "include {new}", "insert {new}", "now with {new}",
    ),
    "remove": (
        "remove the {thing}", "delete the {thing}", "take the {thing} away", "without the {thing}", "erase the {thing}",
        "get rid of the {thing}", "no {thing}", "take out the {thing}",
    ),
    "move": (
        "move the {thing} {new}", "put the {thing} {new}", "place the {thing} {new}", "the {thing} should be {new}",
        "shift the {thing} {new}", "the {thing} {new} instead",
    ),
    "swap": (
        "swap the {thing} and the {new}", "exchange the {thing} and the {new}",
        "let the {thing} and the {new} change places", "switch the {thing} with the {new}",
    ),
    "replace": (
        "replace the {thing} with {new}", "turn the {thing} into {new}", "change the {thing} into {new}",
        "{new} instead of the {thing}", "swap the {thing} for {new}",
    ),
    "sky": (
        "make it {new}", "{phrase}", "now {phrase}", "the same scene {phrase}", "change the sky to {new}",
        "show it {phrase}", "change the time to {new}", "turn it into {new}",
    ),
    "ground": (
        "make the ground {new}", "change the ground to {new}", "put it {phrase}", "the same {phrase}", "now {phrase}",
        "move the scene to {place}", "replace the ground with {place}", "let it be {phrase}",
    ),
    "backdrop": (
        "add {new} in the background", "put {new} behind", "change the background to {new}", "{phrase}", "now {phrase}",
        "the background should be {new}", "with {new}",
    ),
    "clear backdrop": (
        "remove the {new}", "without the {new}", "clear the background", "an empty background", "no {new}",
        "take the {new} away", "remove the background",
    ),
    "light": ("add {new}", "put {new} in the sky", "{phrase}", "now {phrase}", "draw {new} in the sky", "with {new}"),
    "clear light": ("remove the {new}", "without the {new}", "no {new}", "take the {new} away", "delete the {new}"),
    "style": (
        "make it {new}", "draw it {new}", "redraw it {new}", "the same picture {new}", "change the style to {plain}",
        "turn it into {picture}", "{plain} style", "now {new}",
    ),
    "insert": (
        "put the {thing} from the second picture in the first", "add the {thing} of the second image to the first",
        "take the {thing} from picture 2 and place it in picture 1",
        "copy the {thing} from the second picture into the first",
        "the first picture with the {thing} of the second",
        "insert the {thing} from the second image into the first one",
        "combine them: the {thing} of the second picture goes into the first",
    ),
    "borrow sky": (
        "give the first picture the sky of the second", "the first picture with the second one's sky",
        "use the sky from the second image in the first", "the sky of picture 2 in picture 1",
    ),
    "borrow style": (
        "draw the first picture in the style of the second", "the first image in the second one's style",
        "use the style of picture 2 for picture 1", "redraw the first picture like the second one",
    ),
}  # fmt: skip
POLITE_FRAMES: Final = (
    "{}", "please {}", "{}, please", "can you {}?", "could you {}?", "now {}", "and {}", "{}.", "I want you to {}",
)  # fmt: skip
PLAIN_FRAMES: Final = ("{}", "{}.", "{}, please")  # "can you" needs a command after it
COMMANDS: Final = frozenset(
    {
        "make", "change", "turn", "paint", "recolour", "color", "add", "put", "place", "draw", "include", "insert",
        "remove", "delete", "take", "erase", "get", "move", "shift", "swap", "exchange", "let", "switch", "replace",
        "show", "clear", "redraw", "copy", "combine", "give", "use",
    }
)  # fmt: skip
