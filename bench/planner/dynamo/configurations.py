"""The configurations of Dynamo's planner that are measured, by the name they have in the results."""

from typing import Any

# What its documentation leads to.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "default (sla, arima, 180 s)": {"target": "sla", "predictor": "arima", "reactive": False, "interval_s": 180},
    "throughput": {"target": "throughput"},
    "latency": {"target": "latency"},
    "sla, constant, 60 s, reactive": {"target": "sla"},
    "sla, kalman, 60 s, reactive": {"target": "sla", "predictor": "kalman"},
    "sla, kalman, 30 s, reactive": {"target": "sla", "predictor": "kalman", "interval_s": 30},
}
# What somebody would try who knows its code: objectives made stricter by hand than they are, short intervals.
TUNED: dict[str, dict[str, Any]] = {
    "kalman, 60 s, reactive, objectives x0.8": {"target": "sla", "predictor": "kalman", "strict": 0.8},
    "constant, 30 s, reactive, objectives x0.8": {"target": "sla", "interval_s": 30, "strict": 0.8},
    "constant, 10 s, reactive, objectives x0.7": {"target": "sla", "interval_s": 10, "strict": 0.7},
    "constant, 10 s, objectives x0.7": {"target": "sla", "interval_s": 10, "reactive": False, "strict": 0.7},
    "constant, 60 s, objectives x0.7": {"target": "sla", "reactive": False, "strict": 0.7},
    "kalman, 20 s, objectives x0.7": {
        "target": "sla", "predictor": "kalman", "interval_s": 20, "reactive": False, "strict": 0.7,
    },
    "kalman, 20 s, objectives x0.55": {
        "target": "sla", "predictor": "kalman", "interval_s": 20, "reactive": False, "strict": 0.55,
    },
    "kalman, 60 s, reactive, objectives x0.65": {"target": "sla", "predictor": "kalman", "strict": 0.65},
}  # fmt: skip
CONFIGURATIONS = DOCUMENTED | TUNED
