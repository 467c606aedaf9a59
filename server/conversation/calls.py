"""Which call a result answers: older clients send no ids, others repeat what a tool returned. Pure."""

import itertools


class CallIds:
    """The calls of one conversation, in their order. `waiting` are the ids of those that have no result so far."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._names: dict[str, str] = {}  # of the functions, by the calls' ids

    def called(self, call_id: str | None, name: str) -> str:
        """Return the id of a call, which gets one if it was sent without."""
        if not call_id:
            numbered = (f"call_{number}" for number in itertools.count(len(self._names)))
            call_id = next(one for one in numbered if one not in self._names)
        self._names[call_id] = name
        self.waiting.append(call_id)
        return call_id

    def waits(self, call_id: str | None, name: str | None) -> bool:
        """Return whether a call waits for this result."""
        return any(one == call_id if call_id else self._names[one] == name for one in self.waiting)

    def answered(self, call_id: str | None, name: str | None) -> str:
        """Return the id of the call that a result answers. Without an id, that is the first call of its function that
        waits, or the first of all; then the newest of its function."""
        if not call_id:
            own = [one for one in self.waiting if self._names[one] == name]
            earlier = [one for one in reversed(self._names) if self._names[one] == name]
            call_id = next(iter((*own, *([] if earlier else self.waiting), *earlier)), f"call_{name}")
        if call_id in self.waiting:
            self.waiting.remove(call_id)
        return call_id
