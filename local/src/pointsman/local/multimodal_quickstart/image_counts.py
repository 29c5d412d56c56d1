"""Where images were encoded, as the gateway counts it in its /metrics. Pure."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Self

from pointsman.api.protocol.metrics import GATEWAY_IMAGES

PATHS: Final = {
    "encode": "encoded by the encode worker",
    "cache": "from its cache",
    "bypass": "bypassed it (small)",
    "local": "encoded where the prompt was prefilled",
}
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """Images by path and reason."""

    by: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def read(cls, page: str) -> Self:
        """The counts of a gateway's /metrics, in Prometheus' text format."""
        by: Counter[tuple[str, str]] = Counter()
        for line in page.splitlines():
            if line.startswith(GATEWAY_IMAGES.name + "{"):
                labels, _, value = line.rpartition(" ")
                of = dict(_LABEL.findall(labels))
                by[of["path"], of["reason"]] += int(float(value))
        return cls(by)

    def of(self, path: str) -> int:
        """Images that went this way."""
        return sum(count for (each, _), count in self.by.items() if each == path)

    def since(self, before: Self) -> Self:
        """What came after ``before``."""
        return type(self)(self.by - before.by)

    @property
    def in_words(self) -> str:
        """The paths with an image, e.g. "3 encoded by the encode worker, 1 bypassed it (small)"."""
        parts = [f"{self.of(path)} {words}" for path, words in PATHS.items() if self.of(path)]
        reasons = ", ".join(sorted(reason for (path, reason), count in self.by.items() if path == "local" and count))
        return (", ".join(parts) or "no image") + (f" ({reasons})" if reasons else "")
