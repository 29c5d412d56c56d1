"""Structured logs: one JSON object a line on standard error."""

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time, level, logger, message``, the fields that never change, then the record's own (``extra=``)."""

    def __init__(self, constant: dict[str, str]) -> None:
        super().__init__()
        self._constant = constant

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: str, *, service: str) -> None:
    """Log everything from ``level`` on; libraries only from warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter({"service": service}))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pointsman").setLevel(level.upper())
