"""Example facts for the message functions: chosen by the name and the type of each parameter.

A parameter that has no example fails the test, so that no message function is overlooked.
"""

import inspect
import itertools
import pkgutil
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode

PACKAGES: Final = ("pointsman.operator.core.messages",)
MODULES: Final = ()
_EXAMPLES: Final = 8  # of one function
_WORKER: Final = "chat-7850d6c5d-0"
_OTHERS: Final = ("chat-7850d6c5d-1", "chat-7850d6c5d-2", "chat-7850d6c5d-3", "chat-7850d6c5d-4")
_IMAGES: Final = (("registry.example.com/worker:1.2", "9f3c"), ("registry.example.com/worker:1.3", "b210"))
_ERROR: Final = 'pods "chat-7850d6c5d-0" is forbidden: exceeded quota: gpus'
_BY_NAME: Final[dict[str, tuple[Any, ...]]] = {
    "action": ("scaleIn",),
    "amounts": ((("2", "engine"), ("1", "sidecar")),),
    "argument": ("--kv-transfer-config={}",),
    "arguments": ("engine", "encode"),
    "by": ("jane@example.com", None),
    "cause": ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu",),
    "counts": ({Role.PREFILL: (1, 2), Role.DECODE: (2, 2)},),
    "engine": ("sglang",),
    "error": (_ERROR,),
    "field": ("spec.worker.template.spec.nodeName",),
    "fields": (("spec.replicas", "spec.gpu"), tuple(f"spec.field{number}" for number in range(7))),
    "flag": ("--kv-transfer-config",),
    "found": (_IMAGES,),
    "group": ("long-chat",),
    "groups": ("2 groups (2x2 Prefill)",),
    "have": ("1 of 2 decode workers serve",),
    "ignored": ((), ("metrics.source",)),
    "instance": ("long-chat-2",),
    "instances": (("long-chat-0",), ("long-chat-0", "long-chat-1", "long-chat-2", "long-chat-3")),
    "key": ("name",),
    "kind": ("WorkerPool",),
    "kinds": (((1, 2, "Prefill"), (2, 1, "Decode")),),
    "known": (("vllm",),),
    "label": ("pointsman.dev/role",),
    "log": ("ValueError: no GPU found",),
    "message": ("0/3 nodes are available",),
    "name": ("chat-00001",),
    "names": (("chat", "code"),),
    "namespace": ("serving",),
    "node": ("node-1",),
    "noun": ("decode worker",),
    "of": ("worker", "encode"),
    "other": ("chat-to-prefill",),
    "outdated": ((), _OTHERS),
    "own": (_IMAGES[:1],),
    "partner": (_OTHERS[0], None),
    "phase": ("Failed",),
    "plan": ("chat-00001",),
    "pod": ("chat-gateway-7c9d-x2x4z",),
    "policy": ("default",),
    "progress": ("prefill 1 of 2, decode 2 of 2",),
    "reason": ("ScaleDown", "ServiceDeleted"),
    "resource": ("nvidia.com/gpu",),
    "revision": ("main",),
    "rule": ("actions.scaleIn.needsApproval", "mode Approve"),
    "scheduler": ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu",),
    "secret": ("chat-pointsman",),
    "setting": ("spec.multimodal.cacheMiB",),
    "summary": ("1P2D",),
    "url": ("nats://nats:4222",),
    "value": ("0",),
    "values": ("a number of 1 or more",),
    "wanted": (_WORKER,),
    "why": ("the decode pool has 1 of 2 desired workers",),
    "worker": (_WORKER,),
    "plans.out_of_bounds.what": ("decode",),
    "plans.step_disabled.what": ("switches roles", "starts workers", "removes workers"),
    "plans.step_unapproved.what": ("removes workers",),
    "status.refused.what": ("Secret chat-pointsman",),
    "kv.incompatible.others": (_IMAGES[1:],),
    "switches.last_routable.others": ((), ((_OTHERS[0], "fails its readiness probe"),)),
    "status.starting.workers": (((_WORKER, "loads its engine"),),),
    "default": ("registry.example.com/worker:1.3",),
    "kept_image": ("registry.example.com/worker:1.2", None),
    "mode": ("Active", "External"),
    "plans.waits_for_pool.role": ("decode",),
    "workers": ((_WORKER,), (_WORKER, *_OTHERS)),
}
"""By the parameter's name, or by module, function and name where one name means several things."""


class NoExample(Exception):
    """A parameter that this file has no example for."""


def modules() -> Iterator[ModuleType]:
    """All message modules."""
    for name in PACKAGES:
        package = import_module(name)
        for found in pkgutil.iter_modules(package.__path__):
            if found.name != "words":
                yield import_module(f"{name}.{found.name}")
    yield from map(import_module, MODULES)


def rendered_functions() -> Iterator[tuple[str, str]]:
    """(module and function, text) of every message function, with each combination of its example facts."""
    for module in modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                for text in dict.fromkeys(_rendered(function)):
                    yield f"{module.__name__}.{name}".removeprefix("pointsman."), text


def _rendered(function: Callable[..., str]) -> Iterator[str]:
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    options = [facts(f"{function.__module__}.{function.__name__}", name, hints[name]) for name in parameters]
    for chosen in itertools.islice(itertools.product(*options), _EXAMPLES):
        yield function(**dict(zip(parameters, chosen, strict=True)))


def facts(function: str, name: str, hint: Any) -> tuple[Any, ...]:
    """Example values of one parameter. Raises NoExample."""
    if hint is Role:
        return tuple(Role)
    if hint is bool:
        return (True, False)
    if hint is int:
        return (1, 3)
    if hint is float:
        return (30.0,)
    if hint is Mode:
        return tuple(Mode)
    if hint is datetime:
        return (datetime(2026, 11, 27, 12, 0, tzinfo=UTC),)
    for key in (f"{function}.{name}".removeprefix("pointsman.operator.core.messages."), name):
        if key in _BY_NAME:
            return _BY_NAME[key]
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        [other] = [each for each in arguments if each is not type(None)]
        return (*facts(function, name, other), None)
    raise NoExample(f"{function}: parameter {name} of type {hint} has no example in tests/messages/examples.py")
