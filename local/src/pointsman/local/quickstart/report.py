"""What a quick start found: the JSON file for tools, and the closing text for the person at the terminal."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from pointsman.api.v1alpha1.plan import Plan

MAX_LINES: Final = 25
"""Of the closing text: one screen."""
MAX_WIDTH: Final = 105
"""Of its lines, but for failures and paths; characters."""
_MAX_PLANS: Final = 3
_MAX_FAILURES: Final = 5
_INDENT: Final = 14


class Sides(BaseModel):
    """One figure with P/D and on one plain server, milliseconds."""

    model_config = ConfigDict(frozen=True)

    pd: float | None = None
    single: float | None = None

    @property
    def times_smaller(self) -> float | None:
        """How many times smaller the figure is with P/D; None when a side is unknown."""
        return self.single / self.pd if self.pd and self.single else None


class PlanReport(BaseModel):
    """One plan of the planner, as it stood at the end of the run."""

    model_config = ConfigDict(frozen=True)

    name: str
    phase: str | None
    reason: str
    message: str
    pools: dict[str, int]

    @property
    def layout(self) -> str:
        """The pools in short, as 1P2D."""
        return f"{self.pools['prefill']}P{self.pools['decode']}D"

    @classmethod
    def of(cls, plan: Plan) -> "PlanReport":
        """What the report keeps of ``plan``."""
        spec = plan.spec
        return cls(
            name=plan.metadata.name,
            phase=plan.status.phase,
            reason=spec.reason,
            message=spec.message,
            pools={role.label: spec.replicas(role) for role in spec.roles},
        )


class Report(BaseModel):
    """The result of one quick start. A figure that was not taken is None, never 0.

    ``requests`` to ``local_prefills`` count what the client of the service saw over the whole run; ``peak_pss_mib`` is
    the largest sum over all processes of the quick start, this one included, that was seen.
    """

    model_config = ConfigDict(extra="forbid")

    passed: bool = False
    token_exact: bool | None = None
    compared_prompts: int = 0
    requests: int = 0
    failed_requests: int = 0
    remote_prefills: int = 0
    local_prefills: int = 0
    ttft_p50_ms: float | None = None
    worst_itl_ms: Sides = Sides()
    p99_itl_ms: Sides = Sides()
    long_prompt_ttft_p50_ms: Sides = Sides()
    scaled: list[str] = Field(default_factory=list, description="sizes of the decode pool that were reached, in order")
    switch_seconds: list[float] = Field(
        default_factory=list, description="each role switch the planner made, creation to routable in the new role"
    )
    plans: list[PlanReport] = Field(default_factory=list, description="the planner's decisions, in order")
    thresholds: list[int] = Field(
        default_factory=list, description="thresholds of remote prefill that the planner published, in order, tokens"
    )
    first_token_seconds: float | None = None
    total_seconds: float | None = None
    peak_pss_mib: float | None = None
    start_seconds: float = Field(default=0.0, description="simulated start-up time of workers")
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    failures: list[str] = Field(default_factory=list, description="failures, one sentence each")

    def write(self, path: Path) -> None:
        """Write this report as JSON; the folder is made if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n")

    def lines(self, path: Path | None = None, *, explain: bool = False) -> list[str]:
        """The report for a person, at most MAX_LINES; ``path`` is where its JSON is.

        With ``explain`` the plans are whole, which may take more lines.
        """
        found = [_line("Result", "every check passed" if self.passed else "FAILED")]
        found += [_line("", failure.partition("\n")[0]) for failure in self.failures[:_MAX_FAILURES]]
        found += _more(len(self.failures) - _MAX_FAILURES, "failures")
        found += [
            _line("Answers", self._exactness()),
            _line("Requests", f"{self.requests} sent, {self.failed_requests} failed"),
            _line(
                "Prompts",
                f"{self.remote_prefills} computed by a prefill worker, {self.local_prefills} (mostly short ones) by a "
                "decode worker",
            ),
        ]
        if self.scaled:
            found.append(_line("Scaling", f"{' -> '.join(self.scaled)} decode workers while requests ran"))
        if paused := self.paused():
            found.append(_line("Pauses", paused))
        ttft = self.long_prompt_ttft_p50_ms
        if ttft.pd and ttft.single:
            single = f"on one plain server: {ttft.single / 1000:.2f} s (medians)"
            found.append(_line("Long prompts", f"first token after {ttft.pd / 1000:.2f} s; {single}"))
        found += self._planned(explain=explain)
        found += self._needed()
        if path is not None:
            found.append(_line("All figures", in_home(path)))
        return found

    def paused(self) -> str:
        """The stall of streams on both sides, in a sentence; "" if it was not measured."""
        worst = self.worst_itl_ms
        if worst.times_smaller is None:
            return ""
        return (
            f"longest pause while long prompts arrive: {worst.pd:.0f} ms; on one plain server: {worst.single:.0f} ms "
            f"({worst.times_smaller:.0f}x)"
        )

    def switched(self) -> str:
        """The role switches that the planner made, in a sentence."""
        if not self.switch_seconds:
            return "no worker changed its role"
        took = " and ".join(f"{seconds:.1f} s" for seconds in self.switch_seconds)
        switches = "1 role switch" if len(self.switch_seconds) == 1 else f"{len(self.switch_seconds)} role switches"
        return f"{switches} without a restart, in {took}"

    def _planned(self, *, explain: bool) -> list[str]:
        """The planner's moves, and why."""
        if not self.plans:
            return []
        found = [_line("Planner", self.switched())]
        if explain:
            thresholds = " -> ".join(map(str, self.thresholds))
            found.append(_line("", f"threshold of remote prefill, tokens: {thresholds}"))
            found += [_line("", f"{plan.name} {plan.phase} {plan.reason}: {plan.message}") for plan in self.plans]
            return found
        found += [_line("", f"{plan.name}: {plan.message.split('. ')[0]}") for plan in self.plans[:_MAX_PLANS]]
        found += _more(len(self.plans) - _MAX_PLANS, "plans")
        return [*found, _line("", "(1P2D means 1 prefill worker and 2 decode workers)")]

    def _needed(self) -> list[str]:
        """The time and memory of the run."""
        found = []
        if self.start_seconds:
            found.append(_line("Start-up", f"{self.start_seconds:g} s of each worker's start were simulated"))
        if self.first_token_seconds is not None:
            found.append(
                _line("First answer", f"began {self.first_token_seconds:.1f} s after the start of the command")
            )
        if self.total_seconds is not None:
            found.append(_line("Whole run", f"{self.total_seconds:.0f} s"))
        if self.peak_pss_mib:
            found.append(_line("Memory", f"at most {self.peak_pss_mib / 1024:.1f} GiB"))
        return found

    def _exactness(self) -> str:
        if self.token_exact is None:
            return "not compared"
        verdict = "exactly the tokens of" if self.token_exact else "DIFFERENT tokens from"
        return f"{verdict} one plain vLLM server, for {self.compared_prompts} prompts"


def in_home(path: Path) -> str:
    """As a shell writes it: ~ for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _line(label: str, text: str) -> str:
    return f"{label:<{_INDENT}}{text}"


def _more(count: int, what: str) -> list[str]:
    return [_line("", f"… and {count} more {what}")] if count > 0 else []
