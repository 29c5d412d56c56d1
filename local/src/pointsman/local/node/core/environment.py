"""Environment and command line of a container, from its pod, ConfigMaps and Secrets, as a kubelet resolves them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from pointsman.local.node.core.types import Object

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")
_KEY_IN_BRACKETS: Final = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")
_SUFFIXES: Final = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(["k", "M", "G", "T", "P", "E"], 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
    "m": Decimal("0.001"),
    "": Decimal(1),
}
_QUANTITY: Final = re.compile(r"^([0-9.]+)([A-Za-z]*)$")


class CannotResolve(Exception):
    """A reference leads nowhere; the message names the container, the variable and what is missing."""


@dataclass(frozen=True)
class Sources:
    """What references may lead to. Secret values are text already decoded from base64.

    ``config_maps``, ``secrets``  data by object name; an object that does not exist is absent
    ``allocatable``               of the node, used where a container sets no limit
    """

    config_maps: Mapping[str, Mapping[str, str]]
    secrets: Mapping[str, Mapping[str, str]]
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]


@dataclass(frozen=True)
class References:
    """Names of the ConfigMaps and Secrets a container's environment refers to."""

    config_maps: frozenset[str]
    secrets: frozenset[str]


def references(container: Object) -> References:
    """What must be read before ``environment`` can be called."""
    found: dict[str, set[str]] = {"configMap": set(), "secret": set()}
    for source in container.get("envFrom") or ():
        for kind in found:
            if f"{kind}Ref" in source:
                found[kind].add(source[f"{kind}Ref"]["name"])
    for variable in container.get("env") or ():
        origin = variable.get("valueFrom") or {}
        for kind in found:
            if f"{kind}KeyRef" in origin:
                found[kind].add(origin[f"{kind}KeyRef"]["name"])
    return References(frozenset(found["configMap"]), frozenset(found["secret"]))


def environment(pod: Object, container: Object, sources: Sources) -> dict[str, str]:
    """The variables the pod asks for, in its order: ``envFrom`` first, then ``env``, which may refer to earlier ones.

    Raises CannotResolve for a ConfigMap, Secret, key or field that is not there and not optional.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for kind, objects in (("configMap", sources.config_maps), ("secret", sources.secrets)):
            if f"{kind}Ref" in source:
                reference = source[f"{kind}Ref"]
                data = objects.get(reference["name"])
                if data is None and not reference.get("optional"):
                    raise CannotResolve(
                        f'{_KIND[kind]} "{reference["name"]}" not found (container "{container["name"]}")'
                    )
                variables |= {source.get("prefix", "") + key: value for key, value in (data or {}).items()}
    for variable in container.get("env") or ():
        value = _value(pod, container, variable, variables, sources)
        if value is not None:
            variables[variable["name"]] = value
    return variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` where NAME is known; ``$$`` stands for one ``$``; what is unknown stays as it is."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def command_line(
    container: Object, entrypoint: Iterable[str], cmd: Iterable[str], variables: Mapping[str, str]
) -> list[str]:
    """What to run: ``command`` replaces the image's entrypoint and its arguments, ``args`` the arguments only."""
    command, args = container.get("command"), container.get("args")
    if command:
        words = [*command, *(args or ())]
    else:
        words = [*entrypoint, *(args if args else cmd)]
    return [expand(word, variables) for word in words]


_KIND: Final = {"configMap": "configmap", "secret": "secret"}


def _value(
    pod: Object, container: Object, variable: Object, variables: Mapping[str, str], sources: Sources
) -> str | None:
    origin: Mapping[str, Any] = variable.get("valueFrom") or {}
    where = f'container "{container["name"]}", variable "{variable["name"]}"'
    if not origin:
        return expand(variable.get("value") or "", variables)
    for kind, objects in (("configMap", sources.config_maps), ("secret", sources.secrets)):
        if f"{kind}KeyRef" in origin:
            reference = origin[f"{kind}KeyRef"]
            data = objects.get(reference["name"])
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            if data is None:
                raise CannotResolve(f'{_KIND[kind]} "{reference["name"]}" not found ({where})')
            raise CannotResolve(f"couldn't find key {reference['key']} in {_KIND[kind]} {reference['name']} ({where})")
    if "fieldRef" in origin:
        return _field(pod, origin["fieldRef"]["fieldPath"], sources, where)
    if "resourceFieldRef" in origin:
        return _resource(pod, container, origin["resourceFieldRef"], sources, where)
    raise CannotResolve(f"{where}: valueFrom {next(iter(origin))!r} is not supported by the process node")


def _field(pod: Object, path: str, sources: Sources, where: str) -> str:
    bracket = _KEY_IN_BRACKETS.match(path)
    if bracket:
        return str((pod["metadata"].get(bracket[1]) or {}).get(bracket[2], ""))
    fields: Mapping[str, Callable[[], str]] = {
        "metadata.name": lambda: pod["metadata"]["name"],
        "metadata.namespace": lambda: pod["metadata"]["namespace"],
        "metadata.uid": lambda: pod["metadata"]["uid"],
        "spec.nodeName": lambda: pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": lambda: pod["spec"].get("serviceAccountName", ""),
        "status.podIP": lambda: sources.pod_ip,
        "status.podIPs": lambda: sources.pod_ip,
        "status.hostIP": lambda: sources.host_ip,
        "status.hostIPs": lambda: sources.host_ip,
    }
    if path not in fields:
        raise CannotResolve(f"{where}: fieldPath {path!r} is not one of {', '.join(fields)}")
    return fields[path]()


def _resource(pod: Object, container: Object, reference: Object, sources: Sources, where: str) -> str:
    name = reference.get("containerName", container["name"])
    owner = next((c for c in pod["spec"]["containers"] if c["name"] == name), container)
    kind, _, resource = reference["resource"].partition(".")
    if kind not in {"limits", "requests"} or resource not in {"cpu", "memory", "ephemeral-storage"}:
        raise CannotResolve(f"{where}: resource {reference['resource']!r} is not limits or requests of cpu or memory")
    resources = owner.get("resources") or {}
    amount = (resources.get(kind) or {}).get(resource)
    if amount is None:
        amount = sources.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = quantity(str(reference.get("divisor") or "1")) or Decimal(1)
    return str((quantity(str(amount)) / divisor).to_integral_value(ROUND_CEILING))


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number: ``500m`` is 0.5, ``1Gi`` is 2**30. Raises ValueError for anything else."""
    match = _QUANTITY.match(text)
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity like 500m, 2 or 1Gi")
    return Decimal(match[1]) * _SUFFIXES[match[2]]
