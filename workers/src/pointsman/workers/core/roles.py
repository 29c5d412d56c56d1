"""The role of a worker and what follows from it.

A worker starts without a role and waits for the operator to give one: a container that restarts after a role switch
does not come back with its old one.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from pointsman.api.protocol.control import RetryReason, WorkerPhase
from pointsman.api.protocol.names import Role


class EngineCondition(Enum):
    """Whether the engine can compute."""

    STARTING = auto()
    UP = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class RoleState:
    """One worker's role, whether it drains, and the condition of its engine."""

    role: Role | None = None
    draining: bool = False
    engine: EngineCondition = EngineCondition.STARTING

    @property
    def phase(self) -> WorkerPhase:
        """Where the worker is; only ``SERVING`` takes new work."""
        if self.engine is EngineCondition.STARTING:
            return WorkerPhase.STARTING
        if self.engine is EngineCondition.FAILED:
            return WorkerPhase.FAILED
        if self.draining:
            return WorkerPhase.DRAINING
        return WorkerPhase.IDLE if self.role is None else WorkerPhase.SERVING

    @property
    def pulls_prefills(self) -> bool:
        """Whether it takes requests from the prefill queue."""
        return self.phase is WorkerPhase.SERVING and self.role is Role.PREFILL

    @property
    def refusal(self) -> RetryReason | None:
        """Why a client request is sent elsewhere; None: it is taken."""
        match self.phase:
            case WorkerPhase.STARTING | WorkerPhase.FAILED:
                return RetryReason.ENGINE_FAILED
            case WorkerPhase.DRAINING:
                return RetryReason.DRAINING
            case WorkerPhase.IDLE:
                return RetryReason.NO_ROLE
            case WorkerPhase.SERVING:
                return RetryReason.WRONG_ROLE if self.role is Role.PREFILL else None

    def assigned(self, role: Role | None) -> "RoleState":
        """With ``role`` given (or taken away); ends a drain, so that a role switch can be rolled back."""
        return replace(self, role=role, draining=False)

    def drained(self) -> "RoleState":
        """Takes nothing new from now on; keeps its role and what it has."""
        return replace(self, draining=True)

    def with_engine(self, engine: EngineCondition) -> "RoleState":
        """With what is known of the engine."""
        return replace(self, engine=engine)
