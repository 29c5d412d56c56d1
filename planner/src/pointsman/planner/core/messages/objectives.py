"""Objectives that no layout can meet."""

from pointsman.serving.words import quantity


def share_of_requests(
    share: float, longest_tokens: int, attainment: float, possible: float, of_ttft: bool, of_tpot: bool
) -> str:
    """Of requests that miss TTFT, TPOT or both, alone. ``possible``: the attainment if no other one is late."""
    names = " and ".join(f"objectives.{name}" for name, of in (("ttftMs", of_ttft), ("tpotMs", of_tpot)) if of)
    remedy = f"Raise {names}, {'write objectives.ttftMsPerPromptToken, or' if of_ttft else 'or write'}"
    return (
        f"about {share:.0%} of requests miss {names} even when they are alone (prompts above "
        f"about {quantity(longest_tokens, 'token')}). objectives.attainment {attainment:g} is out of reach; "
        f"the pools are sized so that the other requests are in time. {remedy} an attainment below {possible:.2f}"
    )


def ttft(objective_ms: float, prompt_tokens: float, prefill_ms: float, write_ms: int) -> str:
    """Of a prompt of the mean length."""
    return (
        f"objectives.ttftMs allows {objective_ms:.0f} ms for a prompt of "
        f"{quantity(prompt_tokens, 'token')}, but an idle prefill worker takes at least {prefill_ms:.0f} ms. "
        f"No layout meets that; write more than {write_ms}"
    )


def tpot(objective_ms: float, step_ms: float, write_ms: int) -> str:
    """Of a decode step."""
    return (
        f"objectives.tpotMs is {objective_ms:g}, but a decode step of one request takes more than "
        f"{step_ms:.1f} ms. No layout meets that; write more than {write_ms}"
    )
