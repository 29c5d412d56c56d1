"""The best fixed layout, by search: the cheapest that keeps a share of requests within their objectives.

Attainment grows with either pool, so the search walks up the diagonal of equal sizes from the least that each pool
needs beside an ample other one.
"""

from dataclasses import dataclass, replace

from pointsman.planner.core.types import Policy
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Result, Simulation, Trace


@dataclass(frozen=True, slots=True)
class Static:
    """A layout and what it gave."""

    prefill: int
    decode: int
    result: Result


def search(trace: Trace, simulation: Simulation, policy: Policy, attainment: float = 0.95) -> Static:
    """The cheapest layout within the policy that reaches ``attainment``; where none does, the cheapest of the best."""
    most = policy.max_gpus // simulation.engine.gpus
    tried: dict[tuple[int, int], Result] = {}

    def result(prefill: int, decode: int) -> Result:
        if (prefill, decode) not in tried:
            layout = replace(simulation, prefill_workers=prefill, decode_workers=decode, routing=ALL_REMOTE)
            tried[prefill, decode] = simulate(trace, layout, policy, static())
        return tried[prefill, decode]

    def least(prefill: bool) -> int:
        """The smallest pool that suffices when the other has the rest of the budget."""
        low, high = 1, most - 1
        while low < high:
            middle = (low + high) // 2
            layout = (middle, most - middle) if prefill else (most - middle, middle)
            if result(*layout).attainment >= goal:
                high = middle
            else:
                low = middle + 1
        return low

    even = [(most // 2, most - most // 2), (most - most // 3, most // 3), (most // 3, most - most // 3)]
    goal = min(attainment, max(result(*layout).attainment for layout in even) - 0.002)
    least_prefill, least_decode = least(True), least(False)
    for total in range(least_prefill + least_decode, most + 1):
        layouts = [(p, total - p) for p in range(least_prefill, total - least_decode + 1)]
        for layout in layouts:
            if result(*layout).attainment >= goal:
                return Static(*layout, result(*layout))
    layout = max(tried, key=lambda tried_layout: tried[tried_layout].attainment)
    return Static(*layout, tried[layout])
