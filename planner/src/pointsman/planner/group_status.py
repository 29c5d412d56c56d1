"""What an elastic group's status says of its times."""

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime


def latency_of(group: ElasticGroup) -> LatencyModel:
    """Measured times of prefills, as the operator has them from the manager."""
    return LatencyModel(
        {
            each.degree: PrefillTime(
                each.alpha_ms / 1e3,
                each.beta_ms_per_token / 1e3,
                each.gamma_ms_per_squared_token / 1e3,
                each.error_percent / 100,
            )
            for each in group.status.latency_model
        }
    )
