"""Answers of a group that differ from those of one engine: only where rounding may decide."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.elastic.programs import run
from pointsman.local.engine.environment import EngineEnvironment
from pointsman.local.traffic import Api, Comparison, Prompt, Record


def ties_of_float32(
    environment: EngineEnvironment, model: Path, comparison: Comparison, served: Sequence[Record], folder: Path
) -> list[dict[str, Any]]:
    """Where answers differ from those of one server: each a tie of the two best tokens, which rounding decided.

    A tie: in float64 the two lie closer together than float32 changes the logits there. All other tokens of such an
    answer must be the best ones in float64, as transformers computes them after the tokens before. How a prompt is cut
    over instances, and so the order of its sums, depends on the time: of two thousand answers one has had a tie.
    """
    assert comparison.compared > 0
    assert [record.error for record in served if not record.served] == []
    records = {record.prompt.index: record for record in served}
    different = [records[each.index] for each in comparison.differences]
    if not different:
        return []
    answers = folder / "answers.json"
    answers.write_text(json.dumps([{"prompt": given(each.prompt), "tokens": each.token_ids} for each in different]))
    ties = []
    judged = run(environment, "rounding", str(model), str(answers))
    for record, difference, found in zip(different, comparison.differences, judged, strict=True):
        assert found["prompt_tokens"] == record.prompt_tokens
        assert found["wrong"] == [], (difference, found)
        ties += [each for each in found["undecided"] if each["token"] == difference.first_difference]
    assert len(ties) == len(different), (comparison.differences, judged)
    return ties


def given(prompt: Prompt) -> object:
    """As `engine.elastic.rounding` wants it."""
    if prompt.token_ids is not None:
        return prompt.token_ids
    return {"chat": prompt.text} if prompt.api is Api.CHAT else prompt.text
