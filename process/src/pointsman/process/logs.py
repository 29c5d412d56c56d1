"""Structured logs: one line a record on standard error, as text or as JSON.

A record is a short fact that is the same each time, and fields (``extra=``) for what differs: a record about a service
has the field ``service``, ``<namespace>/<name>``. Credentials in URLs are masked.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pointsman.api.credentials import mask_credentials

OURS: Final = "pointsman"
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_AMBIGUOUS = re.compile(r"[\s\"=]")


class JsonFormatter(logging.Formatter):
    """``time, level, logger, message``, the fields that never change, then the record's own (``extra=``)."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        super().__init__()
        self._constant = dict(constant)

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return mask_credentials(json.dumps(line, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """The same as text, for a person: ``time LEVEL logger message field=value …``, a value in quotes where it
    could be misread."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._constant = dict(constant)

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return mask_credentials(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """See logging.Formatter."""
        fields = self._constant | _extra(record)
        return " ".join(
            [super().formatMessage(record), *(f"{key}={_quoted(str(value))}" for key, value in fields.items())]
        )


def _quoted(value: str) -> str:
    if value and value.isprintable() and not _AMBIGUOUS.search(value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD and value is not None}


def configure_logs(level: str, form: str, constant: Mapping[str, str]) -> None:
    """Log Pointsman's records from ``level`` on, and a library's from warning on: what it does is not what we decide.

    ``form`` is ``text`` or ``json``; ``constant`` is in every line.
    """
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.WARNING), handlers=[_handler(form, constant)], force=True)
    logging.getLogger(OURS).setLevel(ours)


def configure_logs_of_a_guest(level: str, form: str, constant: Mapping[str, str]) -> None:
    """The same for Pointsman inside another program, whose own logging is left as it is."""
    logger = logging.getLogger(OURS)
    logger.handlers = [_handler(form, constant)]
    logger.propagate = False
    logger.setLevel(level.upper())


def _handler(form: str, constant: Mapping[str, str]) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(constant) if form == "json" else TextFormatter(constant))
    return handler
