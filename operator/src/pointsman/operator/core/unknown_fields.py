"""Fields that somebody wrote and the API server dropped because no kind has them.

``kubectl`` refuses them before they are sent, but other clients, and ``kubectl --validate=warn``, do not. What was
applied is still to be read in the annotation that client-side apply leaves.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.v1alpha1.resource import Resource
from pointsman.api.v1alpha1.strict import unknown_fields
from pointsman.operator.core.messages import status as text

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def dropped_fields(kind: type[Resource], stored: Mapping[str, Any]) -> str | None:
    """A sentence that names the fields that were applied to an object and dropped; None where none are to be seen.

    A field that was kept and is only newer than this operator is none of them.
    """
    annotations = stored["metadata"].get("annotations") or {}
    try:
        applied = json.loads(annotations.get(LAST_APPLIED, "{}"))
    except ValueError:
        return None
    kept = set(unknown_fields(kind, stored))
    dropped = [sentence for sentence in unknown_fields(kind, applied) if sentence not in kept]
    return text.dropped_fields(dropped) if dropped else None
