"""Stop strings: found across token borders, never shown, not even their beginning."""


class StopFilter:
    """Text goes in as it comes; out comes what no stop string can begin in any more."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """What may be shown now. Once a stop string was found there is nothing more."""
        if not self._stops or self.found:
            return "" if self.found else text
        held = self._held + text
        places = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            self.found = True
            self._held = ""
            return held[: min(places)]
        keep = self._possible_start(held)
        self._held = held[keep:]
        return held[:keep]

    def finish(self) -> str:
        """The text has ended: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, held: str) -> int:
        """Where the earliest stop string could begin that the text so far ends in the middle of."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(held) - longest), len(held)):
            if any(stop.startswith(held[start:]) for stop in self._stops):
                return start
        return len(held)
