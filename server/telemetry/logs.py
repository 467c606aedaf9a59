"""Log lines of the server: on stderr for reading (or as JSON for a collector), and as JSON in the home, rotated."""

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

LOG_BYTES = 10_000_000
LOG_FILES = 5
CHATTY = ("httpx", "httpcore", "alembic", "uvicorn.access", "uvicorn.error")


def configure_logs(folder: Path, *, as_json: bool) -> None:
    """Send structlog and the standard library's loggers through one formatter each way. Raises OSError."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    for_machines = structlog.processors.JSONRenderer()
    for_people = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    folder.mkdir(parents=True, exist_ok=True)
    screen = logging.StreamHandler()
    screen.setFormatter(_formatter(shared, for_machines if as_json else for_people))
    file = RotatingFileHandler(folder / "darkroom.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    file.setFormatter(_formatter(shared, for_machines))
    root = logging.getLogger()
    root.handlers[:] = [screen, file]
    root.setLevel(logging.INFO)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _formatter(
    shared: list[structlog.typing.Processor], last: structlog.typing.Processor
) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
    )
