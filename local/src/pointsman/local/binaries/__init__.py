"""The programs of the control plane and beside it: found on this computer, else built or fetched once."""

from pointsman.local.binaries.catalog import CHROMIUM, CONTROL_PLANE, TOOLS, GoProgram, NpmProgram, Tool
from pointsman.local.binaries.find import Found, Report, binaries_directory, ensure, ensure_all, find

__all__ = [
    "CHROMIUM",
    "CONTROL_PLANE",
    "TOOLS",
    "Found",
    "GoProgram",
    "NpmProgram",
    "Report",
    "Tool",
    "binaries_directory",
    "ensure",
    "ensure_all",
    "find",
]
