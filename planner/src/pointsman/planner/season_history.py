"""A season from Prometheus' history: read once, so that a planner that is new to a service knows its days."""

import asyncio
import logging
from dataclasses import replace

from pointsman.planner.core.state import State
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus import PrometheusReadings

log = logging.getLogger(__name__)


async def with_history(state: State, readings: PrometheusReadings, namespace: str, service: str, now_s: float) -> State:
    """The state with the last week as Prometheus has it, if that is more than the state remembers. Never raises for a
    Prometheus that fails: then the season is learned as time passes."""
    season = state.season
    try:
        rates = await readings.rates(namespace, service, season.bin_s, season.history_bins)
    except PrometheusFailed as error:
        log.warning(
            "history of the rate not read, its days are learned from now on",
            extra={"service": f"{namespace}/{service}", "why": str(error)},
        )
        return state
    of_history = await asyncio.to_thread(season.with_history, rates, int(now_s // season.bin_s))
    if of_history.known_bins <= season.known_bins:
        return state
    hours = of_history.known_bins * season.bin_s / 3600
    log.info(
        "rate read from the history of Prometheus",
        extra={"service": f"{namespace}/{service}", "hours": round(hours, 1)},
    )
    return replace(state, season=of_history)
