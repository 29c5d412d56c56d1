"""A replay's figures as rows of name, value and remark: for the terminal and the page alike."""

from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.protocol.names import Role, workers_in_words

ENCODE: Final = "Encode"
"""The role of an encode worker in a document."""
INSTANCE: Final = "Instance"
"""The role of an elastic group's instance in a document."""


def figure_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, remark) of every figure."""
    found, goals = document["figures"], document["objectives"]
    per_token = goals["ttft_ms_per_prompt_token"]
    ttft_goal = f"{goals['ttft_ms']:g} ms" + (f" + {per_token:g} ms a prompt token" if per_token else "")
    missed = [f"{found[word]} {word}" for word in ("shed", "unfinished", "refused") if found[word]]
    met = "met" if found["attainment"] >= goals["attainment"] else "missed"
    return [
        ("requests", f"{found['requests']}", ", ".join(missed) or "all answered"),
        ("attainment", f"{found['attainment']:.2%}", f"goal {goals['attainment']:.0%}: {met}"),
        ("  within TTFT", f"{found['ttft_attainment']:.2%}", f"objective {ttft_goal}"),
        ("  within TPOT", f"{found['tpot_attainment']:.2%}", f"objective {goals['tpot_ms']:g} ms"),
        ("goodput", _rate(found["goodput_per_s"]), "requests within both objectives"),
        ("GPU-hours", f"{found['gpu_hours']:.2f}", f"at most {found['peak_gpus']} GPUs at once"),
        ("goodput per GPU-hour", f"{found['goodput_per_gpu_hour']:.0f}", "requests within both objectives"),
        _times("TTFT", found, "ms"),
        _times("TPOT", found, "ms; mean per request"),
        *(_group_rows(found) if is_group(document) else _service_rows(document)),
    ]


def _service_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = document["figures"]
    return [
        _times("ITL", found, "ms; every gap"),
        ("queued", f"{found['held']}", _held(found)),
        *_encode_rows(document),
        ("prefilled remotely", f"{found['prefilled_remotely']:.0%}", f"{found['preemptions']} preemptions"),
        ("role switches", f"{found['switches']}", ""),
        ("workers started", f"{found['starts']}", f"{found['stops']} stopped"),
        ("reversals", f"{found['reversals']}", "a pool that grew shrank within 10 min, or the other way"),
    ]


def _group_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    by_degree = {int(degree): number for degree, number in found["prefills_by_degree"].items()}
    return [
        (
            "prefills",
            f"{sum(by_degree.values())}",
            ", ".join(f"{by_degree[each]} of degree {each}" for each in by_degree),
        ),
        ("KV moved", f"{found['moved_tokens']}", "tokens, of instances that ended"),
        ("prefilled again", f"{found['recomputed']}", "requests that had lost KV"),
        ("instances started", f"{found['starts']}", f"{found['stops']} ended"),
        ("reversals", f"{found['reversals']}", "the group grew and shrank within 10 min, or the other way"),
    ]


def is_group(document: Mapping[str, Any]) -> bool:
    """Whether it is of an elastic group."""
    return "group" in document["simulation"]


def what_ran(simulation: Mapping[str, Any]) -> str:
    """What was simulated, in a sentence."""
    surroundings = f"planner {simulation['planner']}; seed {simulation['seed']}"
    if "group" in simulation:
        each = f"{simulation['gpus']} GPU{'' if simulation['gpus'] == 1 else 's'} an instance"
        return (
            f"elastic group {simulation['group']}, {each}, degrees up to {simulation['max_degree']}; at the start "
            f"{at_start(simulation)}; a new instance takes {simulation['startup_s']:g} s; {surroundings}"
        )
    return (
        f"{simulation['model']} on {simulation['gpu']}, TP {simulation['tp']}; at the start {at_start(simulation)}; a "
        f"new worker takes {simulation['startup_s']:g} s; {surroundings}"
    )


def _encode_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Of a service with an encode pool."""
    if "encode_workers" not in document["simulation"]:
        return []
    serving = [point["encode_active"] for point in document["timeline"]]
    changes = [change["kind"] for change in document["transitions"] if change["role"] == ENCODE]
    waited = max((point["images_waiting"] for point in document["timeline"]), default=0)
    images = document["trace"].get("images", 0)
    return [
        ("images", f"{images}", f"at most {waited} waiting"),
        (
            "encode workers",
            f"{min(serving, default=0)} to {max(serving, default=0)}",
            f"{changes.count('start')} started, {changes.count('stop')} stopped",
        ),
    ]


def layout(decision: Mapping[str, Any]) -> str:
    """``2P4D``, or ``1E2P4D`` with an encode pool, of a decision; of an elastic group ``4 instances``."""
    if "prefill" not in decision:
        return instances_in_words(decision["instances"])
    return _layout(decision["prefill"], decision["decode"], decision.get("encode"))


def at_start(simulation: Mapping[str, Any]) -> str:
    """The same of a simulation."""
    if "group" in simulation:
        return instances_in_words(simulation["instances"])
    return _layout(simulation["prefill_workers"], simulation["decode_workers"], simulation.get("encode_workers"))


def instances_in_words(number: int) -> str:
    """For example ``4 instances``."""
    return f"{number} instance{'' if number == 1 else 's'}"


def _layout(prefill: int, decode: int, encode: int | None) -> str:
    workers = {Role.PREFILL: prefill, Role.DECODE: decode}
    return workers_in_words(workers if encode is None else {**workers, Role.ENCODE: encode})


def _rate(per_s: float | None) -> str:
    return "unknown" if per_s is None else f"{per_s:.2f}/s"


def _held(found: Mapping[str, Any]) -> str:
    if not found["held"]:
        return ""
    none = "" if found["shed"] or found["refused"] else ", none refused"
    return f"late anyway{none}; the longest {found['longest_held_s']:.0f} s"


def _times(name: str, found: Mapping[str, Any], remark: str) -> tuple[str, str, str]:
    """The row of three percentiles; none is known without the others."""
    percentiles = found[f"{name.lower()}_ms"]
    values = [percentiles[share] for share in ("p50", "p90", "p99")]
    if None in values:
        return name, "none", "every answer has one token" if found["completed"] else "no request was answered"
    shown = " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)
    return name, shown, f"P50 / P90 / P99, {remark}"
