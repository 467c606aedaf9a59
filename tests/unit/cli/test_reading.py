"""How far the weights have been read, on a terminal and in a log."""

import io

from rich.console import Console

from server.cli.reading import reading_shown


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    with reading_shown(Console(file=file, force_terminal=terminal, width=120)) as send:
        for done in range(1, 101):
            send(done * 10**9, 100 * 10**9)
    return file.getvalue()


def test_a_log_gets_a_line_for_each_tenth() -> None:
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "Reading 100.0 GB of weights, to compare them by SHA-256: 100 %"


def test_a_terminal_gets_a_bar() -> None:
    assert "100.0/100.0 GB" in shown(terminal=True)


def test_nothing_is_shown_if_nothing_is_read() -> None:
    file = io.StringIO()
    with reading_shown(Console(file=file)):
        pass
    assert file.getvalue() == ""
