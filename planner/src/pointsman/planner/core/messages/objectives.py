"""Objectives that no layout can meet."""

from pointsman.serving.words import quantity


def share_of_requests(
    share: float, longest_tokens: int, attainment: float, possible_attainment: float, of_ttft: bool
) -> str:
    """Of requests that miss an objective alone. ``of_ttft``: it is TTFT, not TPOT."""
    name = "objectives.ttftMs" if of_ttft else "objectives.tpotMs"
    at_most = f"an attainment of at most {possible_attainment:.2f}"
    if of_ttft:
        remedy = f"Raise {name}, write objectives.ttftMsPerPromptToken, or {at_most}"
    else:
        remedy = f"Raise {name}, or write {at_most}"
    return (
        f"about {share:.0%} of requests miss {name} even when they are alone (prompts above "
        f"about {quantity(longest_tokens, 'token')}). "
        f"objectives.attainment {attainment:g} is out of reach; the pools are sized for the other requests. "
        f"{remedy}"
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
