"""The role that the operator gave a worker last, kept over restarts of its container.

A worker whose container restarts gets its role from the operator. Without an operator, e.g. while the chart is
uninstalled, it would refuse all requests though its pod is still labelled as routable: so it takes the last role.
"""

import logging
import tempfile
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from pointsman.api.protocol.control import RoleRequest

log = logging.getLogger(__name__)

OPERATOR_S: Final = 20.0
"""An operator that runs gives the role within a few seconds; a new leader follows within about 20."""


class LastRole:
    """A file that outlives the container, but not the pod. ``path`` None: nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._failure_logged = False

    @classmethod
    def of_pod(cls, uid: str) -> Self:
        """In the pod's /tmp, under the pod's uid: pods of a local cluster may share theirs."""
        return cls(Path(tempfile.gettempdir()) / f"pointsman-role-{uid}.json" if uid else None)

    def keep(self, request: RoleRequest) -> None:
        """Save ``request`` for a restart of the container."""
        if self._path is None:
            return
        partial = self._path.with_suffix(".part")
        try:
            partial.write_text(request.wire())
            partial.replace(self._path)
        except OSError as error:
            log.warning("role not kept for a restart", extra={"why": str(error)})

    def read(self) -> RoleRequest | None:
        """The last role request. None: there is none, it took the role away, or the file cannot be read."""
        try:
            found = RoleRequest.model_validate_json(self._path.read_text()) if self._path is not None else None
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            if not self._failure_logged:
                log.warning("last role not readable", extra={"why": str(error)})
                self._failure_logged = True
            return None
        return found if found is not None and found.role is not None else None
