"""Boundary types of the node's core."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]
"""A Kubernetes object, or a part of one, as JSON."""


@dataclass(frozen=True)
class Finished:
    """One run of a container that is over.

    ``exit_code``  as a shell has it: 128 + n for signal n
    ``reason``     Completed, Error, StartError, ContainerStatusUnknown
    ``message``    the last lines it printed, or why it could not start
    """

    exit_code: int
    reason: str
    message: str
    started_at: datetime | None
    finished_at: datetime
    container_id: str


@dataclass(frozen=True)
class Running:
    """A run that goes on. ``started`` and ``ready`` are the probes' verdicts (true where there is no such probe)."""

    started_at: datetime
    container_id: str
    started: bool
    ready: bool


@dataclass(frozen=True)
class Waiting:
    """Not running: ``reason`` as a kubelet gives it (ContainerCreating, CrashLoopBackOff, ErrImagePull …)."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class ContainerView:
    """One container as the status shows it.

    ``state``  what it is now; ``last`` the run before, None if there was none
    """

    name: str
    image: str
    image_id: str
    state: Running | Waiting | Finished
    last: Finished | None
    restarts: int


@dataclass(frozen=True)
class PodView:
    """A whole pod as the node knows it. ``started_at`` is when the node took it up."""

    started_at: datetime
    pod_ip: str
    host_ip: str
    init_containers: Sequence[ContainerView]
    containers: Sequence[ContainerView]
    terminating: bool
