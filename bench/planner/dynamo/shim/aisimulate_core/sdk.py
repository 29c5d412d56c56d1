"""What Dynamo 1.6.1's planner asks of ``aisimulate-core`` 0.13, answered by ``aiconfigurator-core`` 0.12.

The planner imports these two names while it loads, also for targets that use no model. 0.13 is the renamed successor
of 0.12 and is not on the public index; the regression backend, which the benchmark uses, is the same in both.
"""

from dataclasses import dataclass, field
from typing import Any

from aiconfigurator_core.sdk import RustForwardPassPerfModel as _Model


@dataclass
class ForwardPassPerfModelConfig:
    """The fields Dynamo fills and reads; the regression backend reads ``estimator_config`` alone."""

    model: str
    system: str
    backend: str
    worker_type: str
    estimation_mode: str = "auto"
    tp: int = 1
    pp: int = 1
    estimator_config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_legacy_engine_config(cls, engine: dict[str, Any], worker_type: str, options: dict[str, Any]) -> Any:
        """From the form the planner still keeps; of what it gives, the options alone are read."""
        return cls("", "", "", worker_type, estimator_config={"legacy_options": dict(options)})


class RustForwardPassPerfModel:
    """The factory; the object it gives is aiconfigurator's own."""

    @classmethod
    def best_available(cls, config: dict[str, Any]) -> Any:
        """The online regression over forward passes."""
        return _Model.from_regression(config["estimator_config"].get("legacy_options"))
