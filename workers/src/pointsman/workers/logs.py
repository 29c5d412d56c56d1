"""Structured logs of Pointsman's own code: one JSON object a line on standard error, between the engine's lines."""

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time, level, logger, message, worker``, then what the record adds (``extra=``)."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self._worker,
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD and value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(worker: str) -> None:
    """Log what Pointsman's code says, from INFO on; the engine's own logging is left as it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(worker))
    logger = logging.getLogger("pointsman")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
