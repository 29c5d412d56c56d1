"""Where Pointsman keeps, on this computer, what is costly to make."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$POINTSMAN_CACHE``, else ``~/.cache/pointsman``; not made yet, perhaps."""
    return Path(os.environ.get("POINTSMAN_CACHE") or Path.home() / ".cache" / "pointsman")
