"""`make conformance`: SDKs and suites of others against one server with the starters. Writes the tables of
docs/reference/conformance.md, and what the parts said into build/conformance/.

    python -m benchmarks.conformance [PART ...] [--suites FOLDER]

With parts, only their tables are written. FOLDER has copies of the repositories that the page names: `open-responses`,
`vllm-omni` and `lemonade`. Ends with an error if a part could not be run.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from openai import OpenAIError

from benchmarks.conformance.long_sessions import long_sessions
from benchmarks.conformance.sdks import PARTS, Seen, drive_sdks
from benchmarks.conformance.suites import Row, SuiteFailed, Suites
from benchmarks.conformance.tool_sessions import tool_sessions
from tests.support.harness import REPOSITORY, Server

PAGE = REPOSITORY / "docs" / "reference" / "conformance.md"
WORK = REPOSITORY / "build" / "conformance"
SETTINGS = {
    "json_edits": "true",
    "leave_out_pictures": "true",
    "max_running_per_key": "64",  # the trace sends 40 calls at once
    "max_queue_s": "20000",
}
HEADS = {
    "sdks": ("client", *PARTS, "seconds"),
    "open-responses": ("case", "result"),
    "aiperf": ("run", "answered", "p50", "p90", "p99", "calls a second"),
    "trace": ("answered", "whole run", "p50", "p95", "p99", "calls a second"),
    "lemonade": ("passed", "failed"),
    "localai": ("case", "result"),
    "tool-sessions": ("client", "model", "turns answered", "tool ran in both", "requests refused"),
    "long-sessions": ("client", "model", "turns before", "requests too long", "turns answered after"),
}


def write_table(part: str, rows: list[Row]) -> None:
    """Between the marks of this part."""
    begin, end = f"<!-- {part}: make conformance writes this -->\n", f"<!-- end of {part} -->\n"
    before, found, rest = PAGE.read_text().partition(begin)
    if not found:
        raise SystemExit(f"{PAGE} has no place for {part}")
    head = HEADS[part]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    PAGE.write_text(before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2])


def write_date(parts: list[str], run_s: float) -> None:
    told = f"{date.today():%-d %B %Y}, {run_s / 60:.0f} minutes"
    begin, end = "<!-- when -->", "<!-- end of when -->"
    before, _, rest = PAGE.read_text().partition(begin)
    if len(parts) == len(HEADS):
        PAGE.write_text(before + begin + told + end + rest.partition(end)[2])


def sdk_row(seen: Seen) -> Row:
    cells = [f"{found[0]} of {found[1]}" if (found := seen.parts.get(part)) else "-" for part in PARTS]
    name = f"{seen.name}: {seen.failure}" if seen.failure else seen.name
    return (name, *cells, f"{seen.run_s:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*HEADS, []])
    parser.add_argument("--suites", type=Path, default=WORK / "suites")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends too
    began, failed = time.monotonic(), []
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home), REPOSITORY / "weights", REPOSITORY / "model_configs", SETTINGS).start()
        suites = Suites(server, options.suites.resolve(), WORK)
        runs: dict[str, Callable[[], list[Row]]] = {
            "sdks": lambda: [sdk_row(seen) for seen in drive_sdks(server)],
            "open-responses": suites.open_responses,
            "aiperf": suites.aiperf,
            "trace": suites.mixed_trace,
            "lemonade": suites.lemonade,
            "localai": suites.localai,
            "tool-sessions": lambda: tool_sessions(WORK),
            "long-sessions": lambda: long_sessions(WORK),
        }
        parts = options.parts or list(runs)
        try:
            for part in parts:
                started = time.monotonic()
                try:
                    rows = runs[part]()
                except (SuiteFailed, OpenAIError) as error:  # the other parts go on
                    failed.append(part)
                    print(f"{part}: {error}", file=sys.stderr, flush=True)
                    continue
                write_table(part, rows)
                print(
                    f"{part}, {time.monotonic() - started:.0f} s",
                    *(" | ".join(row) for row in rows),
                    sep="\n",
                    flush=True,
                )
        finally:
            server.stop()
            (WORK / "server.log").write_text(server.log)
    write_date(parts, time.monotonic() - began)
    sys.exit(f"not run: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
