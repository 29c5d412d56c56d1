"""What the parts of an elastic group say to each other besides tensors and iterations.

An instance says on NATS where it is; whoever manages the group connects to it. The manager says what the group does at
``STATE_PATH`` of its control API, for the operator, which tells it the policy's objectives at ``OBJECTIVES_PATH``.
"""

import hmac
from typing import Final

from pydantic import Field

from pointsman.api.protocol.control import Wire, accepted_tokens

STATE_PATH: Final = "/pointsman/v1/elastic/state"
OBJECTIVES_PATH: Final = "/pointsman/v1/elastic/objectives"
PRESENCE_SECONDS: Final = 1.0
"""An instance says that it is there so often; one that is silent for ``SILENT_SECONDS`` is forgotten."""
SILENT_SECONDS: Final = 10.0


class InstancePresence(Wire):
    """An instance of an elastic group; ``url``: where its manager connects (http://host:port).

    ``proof``: that it has the group's control token, which the manager sends there. Others may write to NATS too.
    """

    instance: str
    url: str
    proof: str

    @classmethod
    def proved(cls, instance: str, url: str, token: str) -> "InstancePresence":
        """With the proof of ``token``."""
        return cls(instance=instance, url=url, proof=_proof(url, accepted_tokens(token)[0]))

    def proves(self, token: str) -> bool:
        """Whether who said it has ``token``."""
        return any(hmac.compare_digest(self.proof, _proof(self.url, each)) for each in accepted_tokens(token))


def _proof(url: str, token: str) -> str:
    return hmac.new(token.encode(), url.encode(), "sha256").hexdigest()


class InstanceState(Wire):
    """An instance that the manager is connected to. ``slots``: tokens of KV that it keeps; ``draining``: it leaves."""

    name: str
    slots: int
    used_slots: int
    draining: bool = False


class IterationState(Wire):
    """What a group of instances computes at this moment."""

    phase: str = Field(description="Prefill, Decode or Move")
    instances: tuple[str, ...]
    requests: int
    tokens: int = Field(description="of KV that these requests have")


class PrefillTimeState(Wire):
    """A prefill by ``degree`` instances takes alpha + beta * tokens + gamma * sum of squared lengths, in seconds."""

    degree: int
    alpha_seconds: float
    beta_seconds: float
    gamma_seconds: float
    error: float = Field(description="largest relative error of the fit")


class Totals(Wire):
    """Since the manager started. Moved tokens are those of plans; moved bytes are what instances counted."""

    scaled_down: int = 0
    scaled_up: int = 0
    moved_tokens: dict[str, int] = Field(default={}, description="by reason: vacate, drain")
    moved_bytes: dict[str, int] = Field(default={}, description="by reason: scale_down, scale_up, vacate, drain")
    recomputed: int = 0


class ElasticObjectives(Wire):
    """When a request is in time, in seconds; as in a PlannerPolicy, which has milliseconds."""

    ttft_seconds: float = Field(gt=0)
    ttft_seconds_per_prompt_token: float = Field(default=0.0, ge=0)
    tpot_seconds: float = Field(gt=0)


class ObjectivesRequest(Wire):
    """The objectives from now on; absent: none."""

    objectives: ElasticObjectives | None = None


class ElasticState(Wire):
    """An elastic group at one moment. ``manager``: another one after each start of the manager."""

    manager: str
    instances: tuple[InstanceState, ...]
    iterations: tuple[IterationState, ...]
    running: int
    waiting: int
    latency_model: tuple[PrefillTimeState, ...]
    totals: Totals
    objectives: ElasticObjectives | None = None
    metrics_port: int | None = Field(default=None, description="where the manager serves its metrics and nothing else")
