"""The tables of docs/reports/elastic-gpu.md, from what was measured.

.venv/bin/python -m bench.elastic.gpu.page
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.rows import RESULTS

PATH: Final[Path] = RESULTS / "elastic_gpu.json"
LENGTHS: Final = (2048, 8192, 32_768)
BATCHES: Final = (1, 16, 64)


def read() -> dict[str, Any]:
    """What was found, by program."""
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


def exact_table(found: Mapping[str, Any]) -> list[str]:
    """A line for each thing that was compared."""
    exact = found["exact"]

    def seam(dtype: str) -> str:
        of = exact[f"seam_{dtype}"]
        (operation,) = {each for one in of for each in one["operations"]}
        return f"{max(each['output_error'] for each in of):.1g} (`{operation.removesuffix('.default')}`)"

    def alone(dtype: str, what: str) -> list[Any]:
        return [one[what] for name, one in exact.items() if name.endswith(f" {dtype}")]

    def groups(*names: str) -> str:
        of = [one for name in names for one in found[name]]
        return f"{sum(one['wrong_tokens'] for one in of)} of {sum(one['tokens'] for one in of)}"

    def scalings(*names: str) -> str:
        return str(sum(one["moved_bytes"][of] for name in names for one in found[name] for of in ("prefill", "decode")))

    lost = [max(alone("bfloat16", what)) for what in ("lost", "transformers_lost")]
    return [
        "| what | found |",
        "|---|---|",
        "| attention over 1 to 32 768 keys in 1, 2 and 4 parts: error beside float64, of its norm, in float32 | "
        f"{seam('float32')} |",
        f"| the same in bfloat16 | {seam('bfloat16')} |",
        "| one instance, float32: tokens that are not those of transformers on the GPU, of float64 on the CPU | "
        f"{sum(alone('float32', 'not_those_of_transformers_here'))}, {sum(alone('float32', 'wrong_tokens'))} of "
        f"{sum(alone('float32', 'tokens'))} |",
        "| one instance, bfloat16: tokens that are not those of transformers in bfloat16 on the GPU | "
        f"{sum(alone('bfloat16', 'not_those_of_transformers_here'))} of {sum(alone('bfloat16', 'tokens'))} |",
        "| how far a chosen token's logit is below the best, at most, in standard deviations: ours, transformers' | "
        f"{lost[0]:.2f}, {lost[1]:.2f} |",
        "| groups of 1 to 4 instances on the GPU over gloo, float32: tokens that are not those of transformers | "
        f"{groups('gloo_float32', 'gloo_plain')} |",
        f"| bytes of KV that these moved when they shrank or grew | {scalings('gloo_float32', 'gloo_plain')} |",
        "| the same groups over NCCL, each instance as if on a computer of its own | "
        f"{groups('hosts_float32', 'hosts_plain')} |",
        "| an instance killed, or stopped, over gloo: noticed after, at most | "
        f"{_noticed(found['gloo_killed'])}, {_noticed(found['gloo_stopped'])} |",
    ]


def times_table(found: Mapping[str, Any]) -> list[str]:
    """Medians in milliseconds: transformers, one instance, and two that share the GPU."""
    theirs, ours, two = found["alone"]["transformers"], found["alone"]["times"], found["together"]["degree 2"]
    lines = [
        "| | transformers | one instance | ratio | two instances, gloo |",
        "|---|---|---|---|---|",
    ]
    names = [(f"prefill {tokens}", f"prefill of {tokens:,} tokens".replace(",", " ")) for tokens in LENGTHS]
    names += [(f"decode {batch}", f"decode step, {batch} × 1 024 tokens of KV") for batch in BATCHES]
    for name, said in names:
        values = [1000 * statistics.median(of[name]) for of in (theirs, ours, two)]
        lines.append(
            f"| {said} | {values[0]:.0f} ms | {values[1]:.0f} ms | {values[1] / values[0]:.2f} | {values[2]:.0f} ms |"
        )
    return lines


def figures_table(found: Mapping[str, Any]) -> list[str]:
    """The figures that have targets."""
    of = found["together"]
    down, up = of["scale down"], of["scale up"]
    lines = [
        "| figure | measured | target |",
        "|---|---|---|",
        f"| {down['name']}, divided by: {down['peer_name']} ({down['runs']} pairs) | {down['ratio']:.3f} "
        f"| <= 1.02{_missed(down)} |",
        f"| {up['name']}, divided by: {up['peer_name']} | {up['ratio']:.2f} | <= 1.1{_missed(up)} |",
    ]
    for degree in (1, 2):
        row = of[f"latency {degree}"]["row"]
        low, high = (100 * each for each in row["spread"])
        lines.append(
            f"| {row['name']}: mean (spread) | {100 * row['ours']:.1f} % ({low:.1f} to {high:.1f} %) "
            f"| <= 10 %{_missed(row)} |"
        )
    return lines


def _missed(row: Mapping[str, Any]) -> str:
    return "" if row["met"] else ", missed"


def _noticed(deaths: Sequence[Mapping[str, Any]]) -> str:
    return f"{max(each['noticed_s'] for each in deaths):.1f} s"


if __name__ == "__main__":
    found = read()
    print("\n\n".join("\n".join(table(found)) for table in (exact_table, times_table, figures_table)))
