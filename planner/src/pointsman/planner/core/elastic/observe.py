"""What two pages of an elastic group's manager say."""

from pointsman.api.protocol import metrics as named
from pointsman.planner.core import scrapes
from pointsman.planner.core.elastic.types import ManagerWindow
from pointsman.planner.core.observe import Reading
from pointsman.serving.elastic.step_sums import TERMS, StepSums


def manager_window(reading: Reading | None) -> ManagerWindow | None:
    """None where a part of it is missing: unknown is not zero."""
    if reading is None or reading.page is None:
        return None
    sums = [scrapes.added(reading.before, reading.page, named.ELASTIC_DECODE_SUMS.name, term=term) for term in TERMS]
    slots = reading.page.get(named.ELASTIC_SLOTS.name, {})
    total, free = slots.get((("state", "total"),)), slots.get((("state", "free"),))
    waiting = scrapes.gauge(reading.page, "vllm:num_requests_waiting")
    if total is None or free is None or waiting is None or any(each is None for each in sums):
        return None
    return ManagerWindow(
        steps=StepSums(*(each for each in sums if each is not None)), slots=total, free_slots=free, waiting=waiting
    )
