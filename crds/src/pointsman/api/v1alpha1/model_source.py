"""``spec.model.source``: where a model comes from, read from its URL."""

import re
from dataclasses import dataclass
from typing import Final

SCHEMES: Final = ("hf", "pvc", "file")
FORMS: Final = "hf://<organisation>/<name>, pvc://<claim>/<path> or file:///<absolute path>"

# CEL and Python read the same patterns.
HUB_PATTERN: Final = "^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._/-]+)?$"
CLAIM_PATTERN: Final = "^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)+$"
PATH_PATTERN: Final = "^file://(/[^/]+)+$"


class ModelSourceError(ValueError):
    """``spec.model.source`` names no place a model can come from."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on a Hugging Face hub, kept in a cache volume. ``revision``: branch, tag or commit; None: the default."""

    repository: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimModel:
    """A folder in a PersistentVolumeClaim of the service's namespace; ``path`` has no leading slash."""

    claim: str
    path: str


@dataclass(frozen=True, slots=True)
class PathModel:
    """A folder of the node, mounted into workers at the identical path (engines compare the path string)."""

    path: str


ModelSource = HubModel | ClaimModel | PathModel


def parse_model_source(source: str) -> ModelSource:
    """Read a source URL. Raises ModelSourceError with the forms there are."""
    if any(part in (".", "..") for part in source.split("/")):
        raise ModelSourceError(f"spec.model.source: '{source}' has '.' or '..' in its path; write the path itself")
    scheme, _, rest = source.partition("://")
    if re.match(HUB_PATTERN, source):
        repository, _, revision = rest.partition("@")
        return HubModel(repository, revision or None)
    if re.match(CLAIM_PATTERN, source):
        claim, _, path = rest.partition("/")
        return ClaimModel(claim, path)
    if re.match(PATH_PATTERN, source):
        return PathModel(rest)
    known = "is not complete" if scheme in SCHEMES else "has an unsupported scheme"
    raise ModelSourceError(f"spec.model.source: '{source}' {known}; write {FORMS}")
