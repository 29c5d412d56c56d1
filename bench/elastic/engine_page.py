"""The table of the elastic engine in docs/reports/elastic-evaluation.md, from what was measured.

python -m bench.elastic.engine_page
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.rows import RESULTS, Row, read

TOKENS = "test_the_tokens_of_a_thousand_prompts_are_those_of_one_model"


def engine_table(rows: Sequence[Row], tokens: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown. ``rows``: of elastic.json; ``tokens``: what `TOKENS` found."""
    prompts, apart = _number(tokens["requests"]), tokens["two_best_logits_apart"]
    scalings = f"{tokens['shrank']} groups that shrank, {tokens['grew']} steps with a new master"
    lines = [
        "| figure | measured | target |",
        "|---|---|---|",
        f"| tokens of {prompts} prompts that are not those of transformers, degrees {min(tokens['degrees'])} to "
        f"{max(tokens['degrees'])}, {scalings}, {tokens['hand_overs']} hand-overs | {tokens['wrong_tokens']} of "
        f"{_number(tokens['tokens'])} | 0 |",
        f"| bytes of KV moved by these groups and steps | {tokens['moved_bytes_of_scalings']} | 0 |",
        f"| the two best logits apart, at the closest token, at 1 % of the tokens, at half of them | "
        f"{apart['least']:.2g}, {apart['1_percent']:.2g}, {apart['median']:.2g} | |",
        f"| what float32 changes a logit by, at most | {tokens['float32_changes_logits_by']:.2g} | |",
        f"| tokens whose two best logits lie closer together than it changes those of their position | "
        f"{tokens['undecided']} | 0 |",
    ]
    for row in rows:
        if row.name.startswith("error of"):
            low, high = (100 * each for each in row.spread)
            figure = f"{100 * row.ours:.1f} % ({low:.1f} to {high:.1f} %)"
            lines.append(f"| {row.name}: mean (spread) | {figure} | <= 10 % |")
        elif row.ratio is not None and not row.name.startswith("goodput"):
            met = "" if row.met else ", missed"
            lines.append(f"| {row.name}, divided by: {row.peer_name} | {row.ratio:.2f} | {row.target[6:]}{met} |")
    return lines


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


if __name__ == "__main__":
    found = json.loads((RESULTS / "verify.json").read_text())[TOKENS]
    print("\n".join(engine_table(read(RESULTS / "elastic.json"), found)))
