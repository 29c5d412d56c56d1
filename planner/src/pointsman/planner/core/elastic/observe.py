"""What the gateways of an elastic group and its manager report."""

from collections.abc import Sequence
from dataclasses import replace

from pointsman.api.protocol import metrics as named
from pointsman.planner.core.elastic.sizing import NOTHING
from pointsman.planner.core.elastic.types import ManagerWindow
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.observe import UNREAD, Reading, counted_once, observation, together
from pointsman.planner.core.types import Objectives, Observation, RoutingNumbers
from pointsman.serving.elastic.step_sums import TERMS, StepSums


def seen_by_gateways(
    objectives: Objectives,
    *,
    at_s: float,
    ages_s: Sequence[float],
    gateways: Sequence[Reading | None],
    manager: Reading | None,
    before: Observation | None,
    plan_in_progress: bool,
    new_gateways: int = 0,
    unreadable_gateways: tuple[str, ...] = (),
) -> Observation:
    """The requests of one group now.

    ``ages_s``: of the newest page of each gateway and of the manager. A manager that is not read says nothing of its
    instances: then nothing is known of the group. ``gateways``: None for one that is waited for. The two kinds of
    gateways that are not among them: see ``Observation``.
    ``before``: what was seen at the last look, None where nothing was decided on it.
    """
    read = [each or UNREAD for each in gateways]
    seen = observation(
        at_s=at_s,
        age_s=max(ages_s) if gateways else float("inf"),
        gateways=read,
        workers=(),
        routing=RoutingNumbers(0, 0),  # the manager decides where prompts are computed
        objectives=objectives,
        plan_in_progress=plan_in_progress,
        new_gateways=new_gateways,
        unreadable_gateways=unreadable_gateways,
    )
    seen = replace(seen, old_pages=seen.old_pages + (manager is not None and manager.is_old))
    if before is not None:
        seen = counted_once(seen, before)
    ttft, tpot = attainment_at_most(read, objectives)
    service = seen.service and replace(seen.service, ttft_attainment=ttft, tpot_attainment=tpot)
    return replace(seen, service=service)


def attainment_at_most(gateways: Sequence[Reading], objectives: Objectives) -> tuple[float | None, float | None]:
    """(TTFT, TPOT): the largest shares of streams that may be within the objectives, by the gateways' histograms.

    Gateways of a group have no objectives to count against. So each stream is given the TTFT of the longest prompt.
    None: no stream ended.
    """
    longest = together(gateways, named.GATEWAY_PROMPT_TOKENS.name).most
    ttft_s, tpot_s = objectives.ttft_for(longest) / 1000, objectives.tpot_ms / 1000
    ttft, tpot = (together(gateways, of.name) for of in (named.GATEWAY_TTFT, named.GATEWAY_TPOT))
    return ttft.share_at_most(ttft_s), tpot.share_at_most(tpot_s)


def manager_window(reading: Reading | None) -> ManagerWindow | None:
    """None where a part of it is missing: unknown is not zero. Of an old page no step is counted again."""
    if reading is None or reading.page is None:
        return None
    family, slots = named.ELASTIC_DECODE_SUMS.name, reading.page.get(named.ELASTIC_SLOTS.name, {})
    numbers = [
        *(scrape_pair.added(reading.before, reading.page, family, term=term) for term in TERMS),
        *(slots.get((("state", state),)) for state in ("total", "free")),
        scrape_pair.gauge(reading.page, "vllm:num_requests_waiting"),
    ]
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers):
        return None
    *sums, total, free, waiting = known
    return ManagerWindow(NOTHING if reading.is_old else StepSums(*sums), total, free, waiting)
