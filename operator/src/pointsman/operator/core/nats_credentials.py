"""What the operator and the pods of each service connect to NATS with."""

from dataclasses import dataclass

from pointsman.api.protocol.prefill import DEFAULT_QUEUE_LIMIT
from pointsman.operator.core.nats_logins import OPERATOR_USER, Login, password_of, service_login
from pointsman.operator.core.snapshot import Service


@dataclass(frozen=True, slots=True)
class NatsCredentials:
    """What each service's Secret says about NATS.

    With ``service_key`` each service has a login of its own; without it, all have the shared ``user`` and ``password``.
    ``ca_certificate``: PEM; empty: the server's certificate is of a public authority, or it has none.
    """

    user: str
    password: str
    service_key: str | None = None
    ca_certificate: str = ""

    def __repr__(self) -> str:
        return "NatsCredentials(…)"

    def of_service(self, service: Service) -> Login:
        """The login of the pods of ``service``."""
        if self.service_key is None:
            return Login(self.user, self.password)
        return service_login(self.service_key, service.namespace, service.uid, queue_limit(service))

    def of_operator(self) -> Login:
        """The operator's own."""
        if self.service_key is None:
            return Login(self.user, self.password)
        return Login(OPERATOR_USER, password_of(self.service_key, OPERATOR_USER))


def queue_limit(service: Service) -> int | None:
    """Requests that the service's prefill queue holds at most; None: an elastic group has no such queue."""
    if service.kind != "LLMService":
        return None
    limits = service.spec.worker.limits
    chosen = limits.max_queued_prefills if limits is not None else None
    return DEFAULT_QUEUE_LIMIT if chosen is None else chosen
