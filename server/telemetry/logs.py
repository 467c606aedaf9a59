"""The server's log: on stderr as text (or JSON for a collector), and as JSON in a rotated file of the home."""

import logging
import sys
from contextlib import nullcontext
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

MAX_LOG_BYTES = 10_000_000
LOG_BACKUPS = 5
NOISY_LOGGERS = ("httpx", "httpcore", "alembic", "uvicorn.access", "uvicorn.error")


def configure_logs(folder: Path, *, as_json: bool) -> None:
    """Configure structlog and the standard library's loggers alike. Raises OSError if the file can't be opened."""
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
    as_json_line = structlog.processors.JSONRenderer()
    as_text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    folder.mkdir(parents=True, exist_ok=True)
    stderr = logging.StreamHandler()
    stderr.setFormatter(_formatter(shared, as_json_line if as_json else as_text))
    file = RotatingFileHandler(folder / "darkroom.log", maxBytes=MAX_LOG_BYTES, backupCount=LOG_BACKUPS)
    file.setFormatter(_formatter(shared, as_json_line))
    root = logging.getLogger()
    root.handlers[:] = [stderr, file]
    root.setLevel(logging.INFO)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def reopen_log() -> None:
    """Open the log's file anew at the next line: another program may have moved it away."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RotatingFileHandler):
            with handler.lock or nullcontext():
                handler.close()


def _formatter(
    shared: list[structlog.typing.Processor], renderer: structlog.typing.Processor
) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    )
