"""The numbers that a decision about the layout was made by, by name with unit."""

from pointsman.planner.core.layout.rejection_reasons import Choice


def inputs(choice: Choice) -> tuple[tuple[str, float], ...]:
    """What is not known is left out."""
    state, wanted, point, now, observation = choice.state, choice.wanted, choice.point, choice.now, choice.observation
    service = observation.service
    numbers: dict[str, float | None] = {
        "ratePerSecond": wanted.rate_per_s,
        "expectedRatePerSecond": wanted.ahead_per_s,
        "seasonalRisePerSecond": wanted.seasonal_per_s,
        "promptTokens": state.lengths.prompt_tokens,
        "outputTokens": state.lengths.output_tokens,
        "cachedShare": state.lengths.cached_share,
        "prefillWorkers": float(now.prefill),
        "decodeWorkers": float(now.decode),
        "prefillNeededNow": float(wanted.needed_now.prefill),
        "decodeNeededNow": float(wanted.needed_now.decode),
        "prefillNeeded": float(wanted.needed.prefill),
        "decodeNeeded": float(wanted.needed.decode),
        "prefillKept": float(wanted.retained.prefill) or None,
        "decodeKept": float(wanted.retained.decode) or None,
        "workersKept": float(wanted.retained_of_both) or None,
        "backlog": wanted.backlog,
        "prefillMilliseconds": point.prefill_s * 1000,
        "prefillAloneMilliseconds": point.prefill_alone_s * 1000,
        "prefillDispersion": point.prefill_scv,
        "remoteShare": point.remote_share,
        "unreachableTtftShare": point.unreachable.ttft_share,
        "unreachableTpotShare": point.unreachable.tpot_share,
        "longestReachablePromptTokens": point.unreachable.longest_tokens,
        "slackMilliseconds": point.slack_s * 1000,
        "arrivalDispersion": state.forecaster.dispersion,
        "decodeBatch": point.batch,
        "contextDispersion": point.context_scv,
        "stepMilliseconds": point.step_s * 1000,
        "decodeDrainPerSecond": point.drain_per_s,
        "transferMilliseconds": point.transfer_s * 1000,
        "thresholdTokens": float(observation.routing.max_local_prefill_tokens),
        "startSeconds": state.leads.start_s,
        "observedTtftAttainment": service.ttft_attainment if service else None,
        "observedTpotAttainment": service.tpot_attainment if service else None,
        "prefillQueueDepth": service.prefill_queue_depth if service else None,
        "queuedRequests": service.held if service else None,
        "predictedAttainment": state.score.predicted,
        "observedAttainment": state.score.observed,
        "predictionError": state.score.error,
        "attainmentIfExecuted": state.score.if_executed,
        "gpusIfExecuted": len(state.virtual.workers) * observation.gpus_each if state.virtual else None,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items() if value is not None)
