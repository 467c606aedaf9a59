"""Connections to PostgreSQL, as `db` opens them."""

import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Buffer

Result = TypeVar("Result")

# A server that is frozen (a hung disk, a suspended machine) keeps its connections, and answers nothing. No report takes
# as long on a ledger of a million charges.
ANSWER_LIMIT_S = 20.0
REFUSED_AS = ("session is read-only", "server is in hot standby mode")  # libpq's words, by `target_session_attrs`


def limit_answers(engine: Engine, limit_s: Callable[[], float]) -> None:
    """Close each connection on which the server has not answered for `limit_s`, which is asked at each statement.

    If the URL asks for a server that takes writes (`target_session_attrs`), and there is none, connect to one that can
    be read, for one transaction: the next one may find a server that takes them."""
    import psycopg

    class Limited(psycopg.Connection[Any]):
        is_second_choice = False

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            return super().wait(_with_time_limit(self, gen, limit_s()), *arguments, **options)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: Any, options: Any) -> "psycopg.Connection[Any]":
        try:
            return Limited.connect(*arguments, **options)
        except psycopg.OperationalError as error:
            if "target_session_attrs" not in options or not any(each in str(error) for each in REFUSED_AS):
                raise
            second = Limited.connect(*arguments, **{**options, "target_session_attrs": "any"})
            second.is_second_choice = True
            return second

    @event.listens_for(engine, "checkin")
    def drop(connection: Limited | None, record: ConnectionPoolEntry) -> None:
        if connection is not None and connection.is_second_choice:
            record.invalidate()


def _with_time_limit(
    connection: "psycopg.Connection[Any]", gen: Generator[Any, int, Result], limit_s: float
) -> Generator[Any, int, Result]:
    """Run one of psycopg's operations, which is told ten times a second that nothing has come."""
    from psycopg import OperationalError

    until = time.monotonic() + limit_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= until:
                connection.close()
                raise OperationalError(f"PostgreSQL has not answered for {limit_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result


def replace_nul(engine: Engine) -> None:
    """Write the character NUL as U+FFFD, and look for it so: PostgreSQL's text can't hold it, JSON and SQLite can. A
    prompt with one is no failure, and an id with one is nobody's."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        def dump(self, obj: str) -> "Buffer | None":
            return super().dump(obj.replace("\0", "\ufffd"))

    @event.listens_for(engine, "connect")
    def connect(connection: "psycopg.Connection[Any]", _: object) -> None:
        connection.adapters.register_dumper(str, WithoutNul)
