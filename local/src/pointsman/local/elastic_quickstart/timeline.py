"""What the instances of an elastic group computed when: collected from its manager, told in a line and as a picture."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from pointsman.api.protocol.elastic import ElasticState

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 110, 20, 52
_ROW, _BAR = 34, 22
_KINDS: Final = {
    "prefill-1": ("Prefill, alone", "#e39552"),
    "prefill-n": ("Prefill, together", "#b3531b"),
    "decode-1": ("Decode, alone", "#7fb0e0"),
    "decode-n": ("Decode, together", "#2f6fb2"),
    "move-n": ("Handing KV over", "#8250df"),
}
_STYLE: Final = """
.bg{fill:#fff}.ink{fill:#24292f}.dim{fill:#57606a}.grid{stroke:#d8dee4}.row{fill:#f1f3f5}.link{fill:#24292f}
text{font:13px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9aa4af}.grid{stroke:#30363d}
.row{fill:#161b22}.link{fill:#e6edf3}}
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """What each instance computed at ``at_s`` seconds: phase and members of its group; absent: it was idle.

    ``measures``: it computed no request, but what the manager measures.
    """

    at_s: float
    instances: frozenset[str]
    computing: dict[str, tuple[str, tuple[str, ...]]]
    measures: bool = False

    @classmethod
    def of(cls, state: ElasticState, at_s: float) -> "Moment":
        """From what the manager says."""
        computing = {
            name: (iteration.phase, iteration.instances)
            for iteration in state.iterations
            for name in iteration.instances
        }
        return cls(at_s, frozenset(each.name for each in state.instances), computing, not state.running)


@dataclass(slots=True)
class Timeline:
    """Moments in their order; each holds until the next."""

    moments: list[Moment] = field(default_factory=list)

    def add(self, moment: Moment) -> None:
        """The next one."""
        self.moments.append(moment)

    @property
    def seconds(self) -> float:
        """From the first moment to the last."""
        return self.moments[-1].at_s - self.moments[0].at_s if self.moments else 0.0

    def degrees(self, phase: str) -> set[int]:
        """Degrees at which requests were computed in this phase."""
        serving = (moment for moment in self.moments if not moment.measures)
        found = (members for moment in serving for of, members in moment.computing.values() if of == phase)
        return {len(members) for members in found}

    def picture(self) -> str:
        """An SVG: a row an instance, a colour a phase, dots below a bar where instances work together."""
        rows = sorted(set[str]().union(*(moment.instances for moment in self.moments)))
        height = _TOP + _ROW * len(rows) + 40
        parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
                f'aria-label="Work of each instance over {self.seconds:.0f} seconds">'
            ),
            f"<style>{_STYLE}</style>",
            f'<rect class="bg" width="{_WIDTH}" height="{height}"/>',
            *_legend(),
            *_axis(self.seconds, height),
        ]
        for number, name in enumerate(rows):
            top = _TOP + _ROW * number
            parts.append(f'<text class="ink" x="{_LEFT - 10}" y="{top + 16}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect class="row" x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_BAR}"/>')
            parts += [
                f'<rect x="{self._x(begin_s):.1f}" y="{top}" width="{max(0.6, self._x(end_s) - self._x(begin_s)):.1f}" '
                f'height="{_BAR}" fill="{_KINDS[kind][1]}"/>'
                for begin_s, end_s, kind in self._bars(name)
            ]
        return "\n".join([*parts, "</svg>", ""])

    def _x(self, at_s: float) -> float:
        share = (at_s - self.moments[0].at_s) / (self.seconds or 1.0)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _bars(self, name: str) -> Iterator[tuple[float, float, str]]:
        begun_s, now = 0.0, None
        for moment in self.moments:
            kind = _kind(moment.computing.get(name))
            if kind != now:
                if now is not None:
                    yield begun_s, moment.at_s, now
                begun_s, now = moment.at_s, kind
        if now is not None:
            yield begun_s, self.moments[-1].at_s, now


def _kind(computing: tuple[str, Sequence[str]] | None) -> str | None:
    if computing is None:
        return None
    phase, members = computing
    return f"{phase.lower()}-{'1' if len(members) == 1 else 'n'}"


def _legend() -> Iterable[str]:
    left = float(_LEFT)
    for words, colour in _KINDS.values():
        yield f'<rect x="{left:.0f}" y="14" width="14" height="14" fill="{colour}"/>'
        yield f'<text class="dim" x="{left + 20:.0f}" y="26">{words}</text>'
        left += 34 + 7.4 * len(words)


def _axis(seconds: float, height: int) -> Iterable[str]:
    step = next((each for each in (1, 2, 5, 10, 20, 30, 60) if seconds / each <= 12), 120)
    for tick in range(0, int(seconds) + 1, step):
        x = _LEFT + tick / (seconds or 1.0) * (_WIDTH - _LEFT - _RIGHT)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 30}"/>'
        yield f'<text class="dim" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{tick} s</text>'


def words(state: ElasticState) -> str:
    """The group at this moment, in a line: ``long-chat-0+1 prefill 1 (1 840 tokens) | long-chat-2 decode 3``."""
    groups = []
    for each in sorted(state.iterations, key=lambda iteration: iteration.instances):
        first, *others = each.instances
        name = "+".join([first, *(other.rpartition("-")[2] for other in others)])
        groups.append(f"{name} {each.phase.lower()} of {each.requests} ({each.tokens} tokens)")
    free = sum(each.slots - each.used_slots for each in state.instances)
    doing = " | ".join(groups) or "idle"
    return f"{len(state.instances)} instances: {doing}; {state.waiting} wait, {free} slots are free"
