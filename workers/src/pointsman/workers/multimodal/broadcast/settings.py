"""Settings of input broadcasts, from the environment (``POINTSMAN_INPUT_BROADCAST_*``)."""

import os

from pydantic import Field, field_validator

from pointsman.process.settings import ProcessSettings
from pointsman.workers.multimodal.broadcast.modes import DEFAULT_SIZE_THRESHOLD_BYTES, MIB, AutoRule, Mode


class InputBroadcastSettings(ProcessSettings):
    """How inputs reach the ranks, and what that may cost."""

    input_broadcast_mode: Mode = Field(default=Mode.AUTO, description="Mode of every request, or auto.")
    input_broadcast_size_threshold_bytes: int = Field(
        default=DEFAULT_SIZE_THRESHOLD_BYTES, ge=0, description="Raw inputs above which auto may send them raw."
    )
    input_broadcast_max_pending_bytes: int = Field(
        default=1024 * MIB, ge=1, description="Bytes of inputs that may be pending at one time."
    )
    input_broadcast_threads: int = Field(default=2, ge=1, description="Threads that materialise on each rank.")
    input_broadcast_stall_seconds: float = Field(
        default=60.0, gt=0, description="Time without an answer after which a rank counts as lost."
    )
    input_broadcast_join_seconds: float = Field(
        default=300.0, gt=0, description="Time in which all ranks must join the group."
    )

    @field_validator("input_broadcast_mode")
    @classmethod
    def _of_requests_with_inputs(cls, mode: Mode) -> Mode:
        if mode is Mode.NONE:
            raise ValueError("it is the mode of requests without inputs; use auto or another one")
        return mode

    @property
    def auto_rule(self) -> AutoRule:
        """The rule of the mode ``auto`` on this computer."""
        cores = len(os.sched_getaffinity(0))
        return AutoRule(self.input_broadcast_size_threshold_bytes, cores)
