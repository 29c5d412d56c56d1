"""Fields that somebody wrote and the API server dropped because no kind has them.

``kubectl`` refuses them before they are sent, but other clients, and ``kubectl --validate=warn``, do not. What was
applied is still to be read in the annotation that client-side apply leaves.
"""

import json
from collections.abc import Mapping
from typing import Final

from pointsman.api.v1alpha1.resource import Resource
from pointsman.api.v1alpha1.strict import unknown_fields

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MOST_NAMED: Final = 5


def dropped_fields(kind: type[Resource], annotations: Mapping[str, str]) -> str | None:
    """A sentence that names the fields that were applied and dropped; None where there are none to be seen."""
    try:
        applied = json.loads(annotations.get(LAST_APPLIED, "{}"))
    except ValueError:
        return None
    unknown = unknown_fields(kind, applied)
    if not unknown:
        return None
    more = f"; and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return f"applied and dropped: {'; '.join(unknown[:_MOST_NAMED])}{more}"
