"""Example facts for the message functions: chosen by the name and the type of each parameter.

A parameter that has no example fails the test, so that no message function is overlooked.
"""

import inspect
import itertools
import pkgutil
import random
import re
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.types import Layout
from pointsman.planner.core.types import Reason as Decided

PACKAGES: Final = ("pointsman.operator.core.messages", "pointsman.planner.core.messages")
MODULES: Final = ()
_SHARE: Final = re.compile(r"share|attainment|goal|^(gain|then|now|needed)$")
_COMBINATIONS: Final = 10_000
_EXAMPLES: Final = 32  # of one function
_WORKER: Final = "chat-7850d6c5d-0"
_OTHERS: Final = ("chat-7850d6c5d-1", "chat-7850d6c5d-2", "chat-7850d6c5d-3", "chat-7850d6c5d-4")
_IMAGES: Final = (("registry.example.com/worker:1.2", "9f3c"), ("registry.example.com/worker:1.3", "b210"))
_ERROR: Final = 'pods "chat-7850d6c5d-0" is forbidden: exceeded quota: gpus'
_DEFERRED: Final = "needed in 1 of 3 evaluations"
_REJECTED: Final = "does not cover the need of 2P1D"
_BY_NAME: Final[dict[str, tuple[Any, ...]]] = {
    "action": ("scaleIn",),
    "amounts": ((("2", "engine"), ("1", "sidecar")),),
    "argument": ("--kv-transfer-config={}",),
    "arguments": ("engine", "encode"),
    "by": ("jane@example.com", None),
    "cause": ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu",),
    "changes": (("maxLocalPrefillTokens 512 -> 1024",),),
    "counts": ({Role.PREFILL: (1, 2), Role.DECODE: (1, 1)},),
    "engine": ("sglang",),
    "error": (_ERROR,),
    "container": ("worker",),
    "entries": ((), ("a.yaml", "b.yaml")),
    "entry": ("table.yaml",),
    "messages": (("1 of 2 decode workers serve", "no gateway is ready"),),
    "problems": ((("spec.replicas", "Input should be a valid integer"),),),
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
    "layout": ("1P2D",),
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
    "pods": (("chat-gateway-7c9d-x2x4z",), tuple(f"chat-gateway-7c9d-{n}" for n in range(5))),
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
    "why_kept": ("that has not lasted for 30 s yet", "not enough for 15% more requests"),
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
    "plans.change.before": ("1P2D",),
    "plans.change.after": ("2P1D",),
    "plans.attainment.without": (0.5, None),
    "plans.attainment.with_plan": (0.5, 0.9),
    "plans.waits_for_pool.role": ("decode",),
    "workers": ((_WORKER,), (_WORKER, *_OTHERS)),
    "deferred": (_DEFERRED,),
    **{
        f"{function}.message": ("1P2D is enough",)
        for function in (
            "decisions.awaits_approval",
            "decisions.stuck_workers",
            "decisions.withdrawn",
            "encoders.scaled",
            "encoders.unchanged",
            "encoders.with_need",
            "groups.stuck_instances",
        )
    },
    "decisions.beside_stuck.why": (_REJECTED, ""),
    "decisions.withdrawn.planned": ("1P2D", "2 instances"),
    "decisions.first_reading.target": ("gateway", "pod"),
    "decisions.metrics_stale.age_s": (40.0, float("inf")),
    "decisions.stuck_workers.stuck": (((1, "prefill", True), (2, "decode", False)), ((2, "decode", True),)),
    "encoders.taken.need": ("2 encode workers are needed; 1 runs",),
    "encoders.scaled.need": ("2 encode workers are needed; 1 runs", ""),
    "encoders.with_need.need": ("2 encode workers are needed; 1 runs", ""),
    "explanations.accuracy.error": (0.04,),
    "explanations.evaluation_too_large.nbytes": ("1200000",),
    "explanations.alternative.action": ("scale-out",),
    "explanations.alternative.rejected_because": (_REJECTED, None),
    "explanations.input_number.name": ("prefillMilliseconds", "remoteShare"),
    "explanations.input_number.value": (38.0601,),
    "explanations.only_local.shares": ((("lora", 0.1), ("images", 0.2)),),
    "explanations.page_age.source": ("gateway", "worker"),
    "explanations.publication.reason": ("Threshold", "FlowControl"),
    "explanations.at_load.point": ("more_requests", "longer_prompts", "longer_answers", "fewer_requests"),
    "explanations.at_load.value": (37.5,),
    "explanations.silent.component": ("planner", "operator"),
    "explanations.silent.plan": (None, "chat-00001"),
    "explanations.would_change.at": ("more than 3.46 requests/s",),
    "explanations.workers_needed.now": ((1.0, 2.0), None),
    "explanations.workers_serve.others": (((1, "starting"), (0, "draining")), ((2, "starting"),)),
    "groups.stuck_instances.names": (("long-chat-2",),),
    "layouts.change.action": ("switch", "scale-out", "scale-in", "switch+scale-out", "replace"),
    "layouts.deferred.why": (_DEFERRED,),
    "layouts.not_followed.why": (_REJECTED,),
    "rejections.limit.field": ("maxReplicas", "budget.minGpus"),
    "rejections.not_allowed.action": ("scale-out", "scale-in"),
    "routing.number_changed.field": ("slackMilliseconds",),
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


def rendered_messages() -> Iterator[tuple[str, str]]:
    """(module and name, text) of every message: constants, and functions with each combination of example facts."""
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, str) and name.isupper() and not name.startswith("_"):
                yield f"{module.__name__}.{name}".removeprefix("pointsman."), value
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                for text in dict.fromkeys(_rendered(function)):
                    yield f"{module.__name__}.{name}".removeprefix("pointsman."), text


def _rendered(function: Callable[..., str]) -> Iterator[str]:
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    options = [facts(f"{function.__module__}.{function.__name__}", name, hints[name]) for name in parameters]
    every = list(itertools.islice(itertools.product(*options), _COMBINATIONS))
    if len(every) > _EXAMPLES:  # all ones and all twos are among them
        every = [
            *random.Random(0).sample(every, _EXAMPLES),
            *(tuple(each[n % len(each)] for each in options) for n in (0, 1)),
        ]
    for chosen in every:
        yield function(**dict(zip(parameters, chosen, strict=True)))


def facts(function: str, name: str, hint: Any) -> tuple[Any, ...]:
    """Example values of one parameter. Raises NoExample."""
    if hint is Role:
        return tuple(Role)
    if hint is bool:
        return (True, False)
    if hint is int:
        return (1, 2)
    if hint in (Mode, Decided):
        return tuple(hint)
    if hint is Layout:
        return (Layout(1, 2), Layout(2, 1))
    if hint is datetime:
        return (datetime(2026, 11, 27, 12, 0, tzinfo=UTC),)
    for key in (re.sub(r"^pointsman\.\w+\.core\.messages\.", "", f"{function}.{name}"), name):
        if key in _BY_NAME:
            return _BY_NAME[key]
    if hint is float:
        return (0.3,) if _SHARE.search(name) else (1.0, 2.0)
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        [other] = [each for each in arguments if each is not type(None)]
        return (*facts(function, name, other), None)
    raise NoExample(f"{function}: parameter {name} of type {hint} has no example in tests/messages/examples.py")
