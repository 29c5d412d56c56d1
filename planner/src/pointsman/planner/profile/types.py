"""What is measured of a worker. Times are milliseconds unless the name says otherwise; what was not seen is None."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """A prompt of ``new_tokens`` after ``prefix_tokens`` that are cached; whole blocks of them."""

    new_tokens: int
    prefix_tokens: int

    def __str__(self) -> str:
        after = f" after {self.prefix_tokens} cached" if self.prefix_tokens else ""
        return f"prefill of {self.new_tokens} tokens{after}"


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A decode step of ``batch`` sequences with ``context_tokens`` tokens each."""

    batch: int
    context_tokens: int

    def __str__(self) -> str:
        return f"decode step of {self.batch} x {self.context_tokens} tokens"


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """A prompt of ``tokens`` tokens that another worker prefills."""

    tokens: int

    def __str__(self) -> str:
        return f"KV transfer of {self.tokens} tokens"


Point = PrefillPoint | StepPoint | TransferPoint


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One prefill. ``overhead_ms``: what the client waited beyond the engine's own time."""

    new_tokens: int
    prefix_tokens: int
    ms: float
    overhead_ms: float


@dataclass(frozen=True, slots=True)
class StepSample:
    """The mean step of ``steps`` steps, in which every sequence held ``context_tokens`` tokens on average."""

    point: StepPoint
    context_tokens: float
    ms: float
    steps: float


@dataclass(frozen=True, slots=True)
class TransferSample:
    """One prompt prefilled by another worker. ``wait_ms``: until its first token, as the client saw it."""

    tokens: int
    kv_bytes: float
    ms: float
    wait_ms: float


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself."""

    model: str
    max_context_tokens: int
    kv_capacity_tokens: int
    block_tokens: int
    kv_bytes_per_token: int | None  # None: to be seen in a transfer, or told
    version: str | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured of one worker. ``max_batch``: it ran no more at once; None: that was not reached."""

    facts: WorkerFacts
    prefills: tuple[PrefillSample, ...]
    steps: tuple[StepSample, ...]
    transfers: tuple[TransferSample, ...]
    max_batch: int | None
    disturbed: int
    seconds: float
