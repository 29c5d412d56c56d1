"""The programs of the control plane and beside it: found on this computer, else built once from pinned Go modules."""

from pointsman.local.binaries.catalog import CONTROL_PLANE, TOOLS, Tool
from pointsman.local.binaries.find import Found, Report, binaries_directory, ensure, ensure_all, find

__all__ = [
    "CONTROL_PLANE",
    "TOOLS",
    "Found",
    "Report",
    "Tool",
    "binaries_directory",
    "ensure",
    "ensure_all",
    "find",
]
