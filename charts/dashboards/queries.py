"""PromQL of the service or group that is chosen at the top of a dashboard."""

from typing import Final

SELECTED: Final = 'namespace="$namespace",service="$service"'
_WINDOW: Final = "$__rate_interval"


def rate(metric: str, matchers: str = "", by: str = "") -> str:
    """A counter's rate, a second."""
    chosen = f"{SELECTED},{matchers}" if matchers else SELECTED
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{chosen}}}[{_WINDOW}]))"


def increase(metric: str, by: str) -> str:
    """A counter's increase between two points of the graph; nothing while there is none."""
    return f"sum by ({by}) (increase({metric}{{{SELECTED}}}[{_WINDOW}])) > 0"


def changes(metric: str, by: str, matchers: str = "") -> str:
    """For marks: what a counter grew by since the step before; nothing while it did not.

    Each growth is in exactly one step, however steps and scrapes lie. ``increase`` misses what grows between two of its
    windows, and shows it twice where they overlap.
    """
    now = f"{metric}{{{SELECTED},{matchers}}}" if matchers else f"{metric}{{{SELECTED}}}"
    return f"(sum by ({by}) ({now}) - sum by ({by}) ({now} offset $__interval)) > 0"


def quantile(share: float, histogram: str) -> str:
    """A quantile of a histogram, for example 0.95."""
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', by='le')})"


def mean(histogram: str) -> str:
    """The mean of a histogram."""
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"
