"""Events of a container as lines for machines: standard ``logging``, a JSON formatter, one trace id per job.

A program that has its own handlers sees the same records: message, level, and the fields in ``record.ringfence``.
"""

from __future__ import annotations

import contextvars
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ringfence.errors import UsageError
from ringfence.model.printed import json_text
from ringfence.model.system_text import escape_controls

LOGGER = "ringfence.docker"
_MOST_CHARS = 32 << 10
"""Of a message or a traceback: a framework may quote megabytes of what a client has sent."""
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_trace: contextvars.ContextVar[str] = contextvars.ContextVar("ringfence_trace", default="")


def new_trace_id() -> str:
    """As W3C's trace context writes one: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def checked_trace_id(name: str) -> str:
    """A caller's own, which stands in names of files too; empty: a new one is made."""
    if name and not _ID.fullmatch(name):
        raise UsageError(f"trace_id: {name[:80]!r} is not made of at most 64 letters, digits and -")
    return name


def trace_id() -> str:
    """The trace id of the job that this thread works for; empty: it works for none."""
    return _trace.get()


@contextmanager
def traced(name: str = "") -> Iterator[str]:
    """Everything that is logged meanwhile has this trace id; without a name, a new one."""
    token = _trace.set(name or new_trace_id())
    try:
        yield _trace.get()
    finally:
        _trace.reset(token)


def tell(event: str, message: str = "", *, level: int = logging.INFO, **fields: object) -> None:
    """One event of a life: ``container_created``, ``execution_timeout`` and so on. A message is one line, whoever wrote
    its text: some handlers write it as it is."""
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(level):
        known = {"event": event, "trace_id": fields.pop("trace_id", "") or trace_id(), **fields}
        logger.log(level, escape_controls(message or event), extra={"ringfence": known})


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record; whatever a guest put into it stays text."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": self._time(record.created), "level": record.levelname, "logger": record.name,
            "message": _cut(record.getMessage()),
        }  # fmt: skip
        fields = getattr(record, "ringfence", None)
        told |= {str(name): value for name, value in fields.items()} if isinstance(fields, Mapping) else {}
        if record.exc_info:
            told["exception"] = _cut(self.formatException(record.exc_info))
        return json_text(told, indent=None)

    @staticmethod
    def _time(created: float) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
        return f"{whole}.{int(created % 1 * 1000):03}Z"


def _cut(text: str) -> str:
    """Its first and last part, where it is long: a traceback ends with the error."""
    left, half = len(text) - _MOST_CHARS, _MOST_CHARS // 2
    return f"{text[:half]} … {left} characters left out … {text[-half:]}" if left > 0 else text


def write_json_lines(level: int = logging.INFO) -> logging.Handler:
    """Write them to stderr; the handler is returned for whoever wants it elsewhere."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler
