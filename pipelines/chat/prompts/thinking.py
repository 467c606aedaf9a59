"""Thinking as a request asks for it, in the variables of the template at hand. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from pipelines.chat.prompts.template_traits import LEVELS, SWITCHES, USUAL_LEVELS, EffortTraits, TemplateTraits

OFF: Final[Mapping[str, Any]] = {"enable_thinking": False}
ASKS: Final = ("enable_thinking", "thinking")  # by which requests switch it
EFFORT: Final = "reasoning_effort"
BUDGET: Final = "thinking_budget"  # the variable of templates that tell it
BUDGETS: Final[Mapping[str, int]] = {"minimal": 512, "low": 1024, "medium": 8192}  # tokens of thoughts


def template_variables(options: Mapping[str, Any], traits: TemplateTraits) -> dict[str, Any]:
    """Return the template's variables for a request's options: with the template's own switch for thinking, and a level
    of effort that it knows."""
    variables = dict(options)
    asked, switch = _asks_for_thoughts(options), traits.switch
    if asked is not None and switch is not None:
        variables.setdefault(switch, SWITCHES[switch][asked])
    effort = options.get(EFFORT)
    if effort is None and switch is None and traits.effort:
        effort = _implied_effort(traits.effort, asked)
    if traits.effort and traits.effort.switches and effort == LEVELS[0]:
        variables.pop(EFFORT, None)
        return variables
    if traits.effort and effort is not None and (traits.effort.levels or effort == options.get(EFFORT)):
        nearest = _nearest_effort(effort, traits.effort.levels or (effort,))
        variables |= {traits.effort.name: nearest} if traits.effort.name == EFFORT else {}
        variables.setdefault(traits.effort.name, nearest)
    return variables


def thinking_budget(options: Mapping[str, Any], traits: TemplateTraits) -> int | None:
    """Return the tokens that a request's options leave for thoughts, where the template does not tell the model: none
    if it asks for none, and few for a low effort. None leaves it to the model."""
    if _asks_for_thoughts(options) is False or options.get(EFFORT) == LEVELS[0]:
        return 0
    effort = options.get(EFFORT)
    return BUDGETS.get(effort) if isinstance(effort, str) and not traits.effort else None


def unused_options(options: Mapping[str, Any], traits: TemplateTraits, *, held: bool = False) -> tuple[str, ...]:
    """Return the options that change nothing with this template. `held`: the engine holds thoughts to a budget of
    them."""
    known = set(traits.variables)
    if traits.switch or traits.effort or held:
        known |= {EFFORT, *ASKS}
    return tuple(name for name in options if name not in known)


def asks_to_think(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the options by which a request asks for thoughts."""
    asks = [name for name in ASKS if options.get(name)]
    return (*asks, *([EFFORT] if options.get(EFFORT) not in (None, LEVELS[0]) else []))


def _implied_effort(effort: EffortTraits, asked: bool | None) -> str | None:
    """Return the level for a request that asks for thoughts or for none, of a template that has no other switch."""
    if asked is False:
        return LEVELS[0]
    return USUAL_LEVELS[-1] if asked and effort.switches else None


def _asks_for_thoughts(options: Mapping[str, Any]) -> bool | None:
    """Return whether the request wants thoughts; None if it does not say."""
    return next((bool(options[name]) for name in ASKS if options.get(name) is not None), None)


def _nearest_effort(effort: Any, levels: tuple[str, ...]) -> Any:
    """Return the level beside this one that the template knows. An unknown word is its own affair."""
    if effort in levels or effort not in LEVELS:
        return effort
    at = LEVELS.index(effort)
    return min(levels, key=lambda level: abs(LEVELS.index(level) - at))
