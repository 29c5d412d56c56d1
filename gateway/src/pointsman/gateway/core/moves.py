"""How often one request may go to a worker, over its whole life.

A request that kills workers must not kill them all, and one that no worker can do must not occupy them all. What counts
is how far the attempt had come: a worker that refused before it began lost nothing, one that died may have died of it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from pointsman.api.protocol.control import MAX_DEATHS
from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.types import WorkerKey


class AttemptEnd(StrEnum):
    """How an attempt failed."""

    NOT_BEGUN = "not-begun"  # the connection was refused, or the worker said that it did not begin
    FAILED = "failed"
    DIED = "died"  # the worker broke the connection off after it had answered, or its engine or prefill workers died
    LOST = "lost"  # the connection broke off before anything was answered


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """``max_attempts``: workers tried for one answer in all; ``max_moves``: of those, how many after a failure."""

    max_attempts: int
    max_moves: int


@dataclass(slots=True)
class RequestMoves:
    """Limits and deaths of one request.

    Its answers (``n``, several prompts) share the deaths, and each has its own moves. Encode workers that died of its
    images are among the deaths.
    """

    limits: MoveLimits
    died: dict[WorkerKey, str] = field(default_factory=dict)  # names of workers

    def for_answer(self) -> "AnswerMoves":
        """The count of one of its answers."""
        return AnswerMoves(self)

    @property
    def killed(self) -> bool:
        """Whether it is sent to no worker any more, because workers died of it, as far as one can know."""
        return len(self.died) >= MAX_DEATHS


@dataclass(slots=True)
class AnswerMoves:
    """Attempts for one answer, before and after its first token."""

    request: RequestMoves
    _attempts: int = 0
    _moves: int = 0
    _deaths: int = 0

    @property
    def attempts(self) -> int:
        """Attempts that failed."""
        return self._attempts

    @property
    def deaths(self) -> int:
        """Workers that died of the request, as far as one can know."""
        return max(self._deaths, len(self.request.died))

    def failed(
        self, worker: WorkerKey, name: str, end: AttemptEnd, prefill_workers: Collection[str] = ()
    ) -> str | None:
        """An attempt at ``worker`` ended so. Returns why there may be no other one; None: there may be.

        ``prefill_workers``: names of those that died with its prompt, in place of ``worker``.
        """
        limits = self.request.limits
        if end is AttemptEnd.LOST:
            # A worker that dies takes connections for a moment more: that is the death that is counted already.
            end = AttemptEnd.NOT_BEGUN if worker in self.request.died else AttemptEnd.DIED
        self._attempts += 1
        if end is not AttemptEnd.NOT_BEGUN:
            self._moves += 1
        if end is AttemptEnd.DIED:
            died = {WorkerKey(each): each for each in prefill_workers} or {worker: name}
            self._deaths += len(died)
            self.request.died |= died
        if self.killed:
            return self.why_killed
        if self._moves > limits.max_moves:
            return (
                f"{self._attempts} attempts failed, and an answer may move {limits.max_moves} times; "
                f"the limit is {gateway_limit('max_moves')} of the service"
            )
        if self._attempts >= limits.max_attempts:
            return f"{self._attempts} attempts failed; the limit is {gateway_limit('max_attempts')} of the service"
        return None

    @property
    def killed(self) -> bool:
        """Whether workers died of it, as far as one can know."""
        return self.deaths >= MAX_DEATHS

    @property
    def why_killed(self) -> str:
        """The deaths, for an error."""
        names = ", ".join(sorted(self.request.died.values()))
        return f"{self.deaths} workers failed while answering this request ({names}), so it is not sent to another one"
