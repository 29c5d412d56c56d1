"""A replay's figures as rows of name, value and remark: for the terminal and the page alike."""

from collections.abc import Mapping
from typing import Any


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
        ("goodput per GPU-hour", f"{found['goodput_per_gpu_hour']:.0f}", ""),
        ("TTFT", _three(found["ttft_ms"]), "P50 / P90 / P99, ms"),
        ("TPOT", _three(found["tpot_ms"]), "P50 / P90 / P99, ms; mean per request"),
        ("ITL", _three(found["itl_ms"]), "P50 / P90 / P99, ms; every gap"),
        ("held back", f"{found['held']}", _held(found)),
        ("prefilled remotely", f"{found['prefilled_remotely']:.0%}", f"{found['preemptions']} preemptions"),
        ("role switches", f"{found['switches']}", f"{found['reversals']} reversals within 10 min"),
        ("workers started", f"{found['starts']}", f"{found['stops']} stopped"),
    ]


def _rate(per_s: float | None) -> str:
    return "unknown" if per_s is None else f"{per_s:.2f}/s"


def _held(found: Mapping[str, Any]) -> str:
    if not found["held"]:
        return ""
    none = "" if found["shed"] or found["refused"] else ", none refused"
    return f"late anyway{none}; the longest {found['longest_held_s']:.0f} s"


def _three(percentiles: Mapping[str, float | None]) -> str:
    values = [percentiles[name] for name in ("p50", "p90", "p99")]
    return " / ".join(
        "unknown" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values
    )
