"""The user's pod template over ours, as `kubectl patch --type strategic` would merge it.

Maps merge, null removes, lists with a merge key merge by it, other lists are replaced. The keys are those of the
Kubernetes API reference (``patchMergeKey`` of PodSpec and Container). Of a volume only the keys are kept that the user
names too (``retainKeys``), so that another source replaces ours. Directives (``$patch`` …) are refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from pointsman.operator.core.messages import specs as text
from pointsman.operator.errors import NotMergeable

MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
_RETAIN_KEYS: Final = ("volumes",)


def strategic_merge(
    base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "", *, of: str = "spec.worker.template"
) -> dict[str, Any]:
    """``base`` with ``patch`` over it; neither is changed. Raises NotMergeable naming the field of template ``of``."""
    merged = dict(base)
    for key, value in patch.items():
        field = f"{path}.{key}" if path else key
        if key.startswith("$"):
            raise NotMergeable(text.merge_directive(field), of)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = strategic_merge(below if isinstance(below, Mapping) else {}, value, field, of=of)
        elif isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _merge_list(merged.get(key) or [], value, key, field, of)
        else:
            merged[key] = value
    return merged


def _merge_list(base: list[Any], patch: list[Any], key: str, path: str, of: str) -> list[Any]:
    merge_key = MERGE_KEYS[key]
    merged = list(base)
    places = {item.get(merge_key): place for place, item in enumerate(merged) if isinstance(item, Mapping)}
    for number, item in enumerate(patch):
        field = f"{path}[{number}]"
        if not isinstance(item, Mapping) or merge_key not in item:
            raise NotMergeable(text.no_merge_key(field, merge_key), of)
        place = places.get(item[merge_key])
        if place is None:
            places[item[merge_key]] = len(merged)
            merged.append(strategic_merge({}, item, field, of=of))
        else:
            kept = {name: merged[place][name] for name in merged[place] if key not in _RETAIN_KEYS or name in item}
            merged[place] = strategic_merge(kept, item, field, of=of)
    return merged
