"""What a quick start found: the JSON file for tools, and the closing text for the person at the terminal."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pointsman.api.v1alpha1.plan import Plan


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
    failures: list[str] = Field(default_factory=list, description="what went wrong, a sentence each")

    def write(self, path: Path) -> None:
        """Write this report as JSON; the folder is made if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n")

    def lines(self) -> list[str]:
        """The report for a person: one finding a line."""
        found = [
            f"answers        {self._exactness()}",
            f"requests       {self.requests} sent, {self.failed_requests} failed; prompts computed by the prefill "
            f"pool: {self.remote_prefills}, by the decode worker itself: {self.local_prefills}",
        ]
        if self.scaled:
            found.append(f"scaling        decode pool {' -> '.join(self.scaled)} under load")
        found += self._planned()
        worst = self.worst_itl_ms
        if worst.times_smaller is not None:
            found.append(
                f"stall          worst wait between two tokens while 2 000-token prompts arrive: {worst.pd:.0f} ms "
                f"with prefill and decode separated, {worst.single:.0f} ms on one server ({worst.times_smaller:.0f}x)"
            )
        ttft = self.long_prompt_ttft_p50_ms
        if ttft.pd and ttft.single:
            found.append(
                f"its price      first token of those long prompts after {ttft.pd / 1000:.2f} s instead of "
                f"{ttft.single / 1000:.2f} s (median)"
            )
        if self.first_token_seconds is not None:
            found.append(f"first token    {self.first_token_seconds:.1f} s after the start")
        if self.start_seconds:
            found.append(f"start-up       {self.start_seconds:g} s of each worker's were simulated")
        if self.total_seconds is not None and self.peak_pss_mib is not None:
            found.append(
                f"whole run      {self.total_seconds:.0f} s, at most {self.peak_pss_mib / 1024:.1f} GiB of memory"
            )
        return found + [f"FAILED         {failure}" for failure in self.failures]

    def _planned(self) -> list[str]:
        """The planner's moves, a line each, and how the threshold went."""
        if not self.plans:
            return []
        thresholds = map(str, self.thresholds)
        took = ", ".join(f"{seconds:.1f} s" for seconds in self.switch_seconds)
        switches = f"{len(self.switch_seconds)} role switches ({took})"
        found = [f"planner        threshold {' -> '.join(thresholds)} tokens; {switches}"]
        for plan in self.plans:
            found.append(f"               {plan.name} {plan.phase} {plan.layout}, {plan.reason}: {plan.message}")
        return found

    def _exactness(self) -> str:
        if self.token_exact is None:
            return "not compared"
        verdict = "the same tokens as" if self.token_exact else "DIFFERENT tokens from"
        return f"{verdict} one plain server, over {self.compared_prompts} prompts (float32)"
