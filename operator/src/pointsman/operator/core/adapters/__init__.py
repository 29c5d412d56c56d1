"""Engines. An engine is one module here: it says how a worker of it is started and what its KV depends on.

To add one: write ``<engine>.py`` with a class that has the methods of ``EngineAdapter`` (its pod comes from
``worker_pod``) and put it into ``_ADAPTERS`` under its ``spec.engine.type``. The other places an engine needs are in
CONTRIBUTING.md.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.operator.core.adapters.vllm import VllmAdapter
from pointsman.operator.core.install import Install
from pointsman.operator.core.messages import specs as text
from pointsman.operator.core.snapshot import Service
from pointsman.operator.errors import Refused


class EngineAdapter(Protocol):
    """What the operator needs to know about an engine. Pure."""

    def check(self, spec: LLMServiceSpec) -> None:
        """Raise Refused for what this engine cannot do or the user may not set."""

    def block_size(self, spec: LLMServiceSpec) -> int:
        """Tokens in a KV block."""

    def kv_inputs(self, spec: LLMServiceSpec, install: Install) -> Mapping[str, Any]:
        """What decides whether two workers may exchange KV."""

    def pod(self, service: Service, install: Install, name: str, role: Role) -> dict[str, Any]:
        """The manifest of one worker."""


_ADAPTERS: Final[Mapping[str, EngineAdapter]] = {"VLLM": VllmAdapter()}


def adapter_for(spec: LLMServiceSpec) -> EngineAdapter:
    """The adapter of ``spec.engine.type``; raises Refused for an engine that is not built."""
    found = _ADAPTERS.get(str(spec.engine.type))
    if found is None:
        raise Refused(
            text.engine_not_implemented(str(spec.engine.type), tuple(_ADAPTERS)),
            Reason.NOT_IMPLEMENTED,
        )
    return found
