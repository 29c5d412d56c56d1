"""What Dynamo 1.6.1's planner asks of ``aisimulate-core`` 0.13, answered by ``aiconfigurator-core`` 0.12.

The planner imports these two names while it loads, also for targets that use no model. 0.13 is the renamed successor
of 0.12 and is not on the public index; the regression backend, which the benchmark uses, is the same in both.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from aiconfigurator_core.sdk import RustForwardPassPerfModel as _Model


@dataclass
class ForwardPassPerfModelConfig:
    """The fields Dynamo fills; the regression backend reads ``estimator_config`` alone."""

    model: str = ""
    system: str = ""
    backend: str = "vllm"
    worker_type: str = "decode"
    estimation_mode: str = "auto"
    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    kv_block_size: int | None = None
    nextn: int = 0
    speculation: dict[str, Any] | None = None
    estimator_config: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_legacy_engine_config(
        cls, engine: dict[str, Any], worker_type: str, options: dict[str, Any]
    ) -> "ForwardPassPerfModelConfig":
        """From the form the planner still keeps."""
        return cls(
            model=engine["model_name"],
            system=engine["system_name"],
            backend=engine["backend"],
            worker_type=worker_type,
            tp=engine["tp_size"],
            pp=engine["pp_size"],
            estimator_config={"legacy_options": dict(options)},
        )


class RustForwardPassPerfModel:
    """The factory; the object it gives is aiconfigurator's own."""

    @classmethod
    def best_available(cls, config: dict[str, Any]) -> Any:
        """The online regression over forward passes."""
        return _Model.from_regression(config["estimator_config"].get("legacy_options"))
