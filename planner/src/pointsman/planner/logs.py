"""One line a record, as text or as JSON; a record about a service begins with ``service=<namespace>/<name>``."""

import json
import logging
import sys
from datetime import UTC, datetime


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def configure_logs(level: str, form: str) -> None:
    """Log to standard error. aiohttp speaks only from warnings on: what it does is not what we decide."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("aiohttp", "asyncio", "kubernetes"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
