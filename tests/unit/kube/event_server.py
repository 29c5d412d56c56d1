"""An API server that stores Events."""

import asyncio
from typing import Any

from pointsman.kube.errors import AlreadyExists, Forbidden, NotFound
from pointsman.kube.resources import Resource


class ApiServer:
    """Keeps the Events written to it; ``error`` is raised instead."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self.error: Exception | None = None
        self.answers = True
        """Otherwise it writes and never answers."""
        self.unanswered = asyncio.Event()
        self.forbids_patch = False

    async def create(self, _: Resource, body: dict[str, Any]) -> dict[str, Any]:
        self._count()
        if body["metadata"]["name"] in self.events:
            raise AlreadyExists("already exists", status=409)
        self.events[body["metadata"]["name"]] = body
        if not self.answers:
            self.unanswered.set()
            await asyncio.Event().wait()
        return body

    async def patch(self, _: Resource, name: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self._count()
        if self.forbids_patch:
            raise Forbidden("forbidden", status=403)
        if name not in self.events:
            raise NotFound("expired", status=404)
        self.events[name] |= body
        return self.events[name]

    def _count(self) -> None:
        self.writes += 1
        if self.error is not None:
            raise self.error

    @property
    def notes(self) -> list[str]:
        return [event["note"] for event in self.events.values()]
