"""Why a spec cannot be carried out as written: field, value, and what would be right."""

from collections.abc import Sequence


def engine_not_implemented(engine: str, known: Sequence[str]) -> str:
    return f"spec.engine.type is {engine}: not implemented, use one of {', '.join(known)}"


def revision_twice(revision: str) -> str:
    return f"spec.engine.args has --revision and spec.model.source names {revision}: leave one of them out"


def cpu_block_size(block_size: int) -> str:
    return f"spec.engine.blockSize is {block_size}: a CPU engine (gpus: 0) takes multiples of 32 only"


def flag_is_set(field: str, argument: str, flag: str) -> str:
    return f"{field} has {argument}: {flag} is set by Pointsman, leave it out"


def field_is_set(field: str) -> str:
    return f"{field} is set by Pointsman: leave it out"


def variable(of: str, container: str, name: str) -> str:
    """The path of an environment variable."""
    return f"spec.{of}.template.spec.containers[name={container}].env {name}"


def variables_are_set(field: str) -> str:
    return f"{field} is set by Pointsman: write the variables in env"


def arguments_are_set(field: str, arguments: str) -> str:
    """``arguments``: engine or encode."""
    return f"{field} is set by Pointsman: use spec.{arguments}.args"


def set_elsewhere(field: str, setting: str) -> str:
    return f"{field} is set by {setting}: set it there"


def wrong_value(field: str, value: str, values: str) -> str:
    return f"{field} is {value!r}: write {values}"


def label_is_set(of: str, label: str) -> str:
    return f"spec.{of}.template.metadata.labels {label} is set by Pointsman"


def uncounted_gpus(of: str, resource: str, amounts: Sequence[tuple[str, str]], gpus: int) -> str:
    """``amounts``: each with the name of its container."""
    listed = " and ".join(f"{amount} for container {container}" for amount, container in amounts)
    return f"spec.{of}.template requests {resource} {listed}, but budgets count spec.{of}.gpus ({gpus})"


def merge_directive(field: str) -> str:
    return f"{field}: merge directives are not supported, write the fields themselves"


def no_merge_key(field: str, key: str) -> str:
    return f"{field} has no {key}, which must identify each entry of this list"
