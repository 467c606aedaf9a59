"""Stop strings: found across token borders, and never shown, not even their beginning."""


class StopFilter:
    """Passes text through as it comes, except text that may be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._pending = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Add text, and return the part that may be shown now. Nothing follows a match."""
        if not self._stops or self.matched:
            return "" if self.matched else text
        pending = self._pending + text
        matches = [(index, stop) for stop in self._stops if (index := pending.find(stop)) >= 0]
        if matches:
            index, self.matched = min(matches)
            self._pending = ""
            return pending[:index]
        safe = self._possible_match(pending)
        self._pending = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """Return the text that was held back: now that the text has ended, it is no stop string."""
        pending, self._pending = self._pending, ""
        return pending

    def _possible_match(self, pending: str) -> int:
        """Return the earliest index from which on the text is the beginning of a stop string; its length if there is
        none."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(pending) - longest), len(pending)):
            if any(stop.startswith(pending[start:]) for stop in self._stops):
                return start
        return len(pending)
