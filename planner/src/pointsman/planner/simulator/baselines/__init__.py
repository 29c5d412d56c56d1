"""Planners to measure ours by, each with the interface of ``core.decide``: published ideas in the simulator's terms.

``PLANNERS`` makes those that need to know nothing before a run. ``best_static.search`` and ``clairvoyant.search``
need the trace: they are bounds, nobody has them while it happens.
"""

from collections.abc import Callable, Mapping

from pointsman.planner.simulator.baselines.arrow import arrow
from pointsman.planner.simulator.baselines.dynamo import dynamo
from pointsman.planner.simulator.baselines.heteroscale import heteroscale
from pointsman.planner.simulator.baselines.hpa import hpa
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.baselines.tokenscale import tokenscale
from pointsman.planner.simulator.types import Planner

PLANNERS: Mapping[str, Callable[[], Planner]] = {
    "pointsman": ours,
    "static": static,
    "hpa": hpa,
    "heteroscale": heteroscale,
    "tokenscale": tokenscale,
    "dynamo": dynamo,
    "arrow": arrow,
}
"""By the name that commands use. ``static`` stays at the simulation's first layout."""
