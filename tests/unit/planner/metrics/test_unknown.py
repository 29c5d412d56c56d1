"""Unknown is never zero: whatever cannot be read for a while, no worker goes and none changes its role for it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    EngineSample,
    Load,
    Observation,
    Policy,
    RoutingNumbers,
    Service,
    Uncached,
)
from unit.planner.scenes import LLAMA_8B_H100, LONG, SHORT, workers

POLICY = Policy(mode=Mode.ACTIVE, max_gpus=14, prefill=Bounds(1, 8), decode=Bounds(1, 8), scale_in_stabilization_s=60)
LOADS = {
    "short": replace(SHORT, arrivals_per_s=150.0),
    "long": LONG,
    "mixed": Load(50.0, prompt_tokens=2000, output_tokens=250, prompt_length_shares=((1000, 0.5), (3000, 0.5))),
}
OF_LOAD = (
    "prompt_tokens", "cached_tokens", "output_tokens", "measured", "pulled_tokens", "pulling_s", "uncached",
)  # fmt: skip
OF_SERVICE = ("ttft_attainment", "tpot_attainment", "attainment", "prefill_queue_depth", "held")
OF_LOOK = (
    "load",
    "service",
    "kv_capacity_tokens",
    "max_sequences",
    "samples",
    "prompt_length_shares",
)
OF_WORKER = ("in_flight", "queued", "kv_usage")
LOOKS = 30


def known(at_s: float, name: str, layout: tuple[int, int]) -> Observation:
    """Everything is known, and clients get what they should."""
    load, (prefill, decode) = LOADS[name], layout
    rate, answers = load.arrivals_per_s, load.output_tokens or 1.0
    step_ms = 8.0
    decoding = rate * answers * step_ms / 1000
    prompt = load.prompt_tokens or 1.0
    # Half of the prompts go on where they were, and lack a hundred tokens there; the others a beginning that is shared.
    given, lacks = rate * 2.5, 0.8 * prompt
    sent = given / 2
    uncached = Uncached(
        given, given * prompt, sent * (lacks + 100.0), ((100.0, 0.5), (lacks, 0.5)), sent, sent * prompt, sent * lacks
    )
    full = replace(
        load, cached_tokens=0.2 * prompt, measured=rate * 2.5, pulled_tokens=sent * lacks,
        pulling_s=sent * 0.02, uncached=uncached,
    )  # fmt: skip
    each = round(decoding / decode)
    seen = tuple(
        replace(w, in_flight=each if w.role is Role.DECODE else 1, queued=0, kv_usage=0.3)
        for w in workers(prefill, decode)
    )
    samples = (
        EngineSample(Role.PREFILL, LLAMA_8B_H100.prefill_ms(lacks, 0.2 * prompt), lacks),
        EngineSample(Role.DECODE, step_ms, each * (prompt + answers / 2), max(1.0, each)),
    )
    return Observation(
        at_s=at_s, window_s=2.5, age_s=1.0, workers=seen, routing=RoutingNumbers(512, 32), load=full,
        service=Service(1.0, 1.0, 1.0, 0.0, 0.0), samples=samples, kv_capacity_tokens=400_000.0,
        max_sequences=256.0,
    )  # fmt: skip


@cache
def settled(name: str) -> tuple[State, tuple[int, int], float]:
    """After ten minutes of a load whose decisions are carried out at once."""
    state, layout = State(), (4, 4)
    for tick in range(240):
        at_s = 2.5 * tick
        state, decision, _ = decide(state, known(at_s, name, layout), POLICY, at_s, LLAMA_8B_H100)
        layout = decision.prefill, decision.decode
    assert not decision.changes_layout
    return state, layout, at_s


def unknown(missing: frozenset[str], parts: Sequence[str]) -> dict[str, Any]:
    """These parts that are missing, as what is not known."""
    return {part: None for part in parts if part in missing}


def without(seen: Observation, missing: frozenset[str]) -> Observation:
    assert seen.load is not None
    assert seen.service is not None
    load = replace(seen.load, **unknown(missing, OF_LOAD))
    if "prompt_length_shares" in missing:
        load = replace(load, prompt_length_shares=())
    service = replace(seen.service, **unknown(missing, OF_SERVICE))
    worker = unknown(missing, OF_WORKER)
    return replace(
        seen,
        load=None if "load" in missing else load,
        service=None if "service" in missing else service,
        samples=() if "samples" in missing else seen.samples,
        workers=tuple(replace(w, **worker) for w in seen.workers),
        **unknown(missing, ("kv_capacity_tokens", "max_sequences")),
    )


@pytest.mark.parametrize("name", LOADS)
def test_with_everything_known_nothing_changes(name: str) -> None:
    """Or the next test would say nothing."""
    stays(name, frozenset())


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(LOADS)),
    missing=st.frozensets(st.sampled_from((*OF_LOAD, *OF_SERVICE, *OF_LOOK, *OF_WORKER))),
)
def test_whatever_is_unknown_for_minutes_no_worker_goes_or_changes_its_role(name: str, missing: frozenset[str]) -> None:
    stays(name, missing)


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("one", (*OF_LOAD, *OF_SERVICE, *OF_LOOK, *OF_WORKER))
def test_each_part_alone_may_be_unknown(name: str, one: str) -> None:
    stays(name, frozenset({one}))


def stays(name: str, missing: frozenset[str]) -> None:
    state, layout, began_s = settled(name)
    for look in range(1, LOOKS + 1):
        at_s = began_s + 2.5 * look
        seen = without(known(at_s, name, layout), missing)
        state, decision, _ = decide(state, seen, POLICY, at_s, LLAMA_8B_H100)
        assert not decision.switches, (look, sorted(missing), decision.message)
        assert decision.prefill >= layout[0], (look, sorted(missing), decision.message)
        assert decision.decode >= layout[1], (look, sorted(missing), decision.message)
