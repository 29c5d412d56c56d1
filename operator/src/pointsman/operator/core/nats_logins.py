"""Who may do what on the NATS server of the chart: one login for each service, and rights to its own subjects only.

No list of logins exists. The password of a login is a keyed hash of its user name, so whoever has the key can make and
check it: the operator writes it into the service's Secret, the server's authorizer checks it when a pod connects.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from pointsman.api.protocol import names

OPERATOR_USER: Final = "pointsman-operator"
"""The operator's own login, and the authorizer's for JetStream: all rights."""
AUTHORIZER_USER: Final = "pointsman-authorizer"
"""Answers the server's authorization requests; in the system account."""
SYSTEM_ACCOUNT: Final = "SYS"
_NO_QUEUE: Final = 0


@dataclass(frozen=True, slots=True)
class Login:
    """User and password of one connection."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, password=…)"


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user of one service: ``namespace.uid.queue limit``.

    ``queue_limit``: requests that the service's prefill queue holds at most; 0 if it has no queue (an elastic group).
    """

    namespace: str
    service_uid: str
    queue_limit: int

    def __str__(self) -> str:
        return f"{self.namespace}.{self.service_uid}.{self.queue_limit}"

    @classmethod
    def parse(cls, user: str) -> Self | None:
        """The parts of a user name; None for the name of anybody else."""
        namespace, _, rest = user.partition(".")
        uid, _, limit = rest.rpartition(".")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
            return None
        try:
            names.prefill_stream(namespace, uid)
        except ValueError:
            return None
        found = cls(namespace, uid, int(limit))
        return found if str(found) == user else None

    @property
    def has_queue(self) -> bool:
        """Whether the service has a prefill queue."""
        return self.queue_limit > _NO_QUEUE


def password_of(key: str, user: str) -> str:
    """The password of ``user`` under ``key``: 43 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(_keyed(key, f"nats password of {user}")).decode().rstrip("=")


def issuer_seed(key: str) -> bytes:
    """The 32 bytes from which the authorizer's signing key is made."""
    return _keyed(key, "nats authorization issuer")


def service_login(key: str, namespace: str, service_uid: str, queue_limit: int | None) -> Login:
    """The login of a service; ``queue_limit`` None: it has no prefill queue."""
    user = str(ServiceUser(namespace, service_uid, queue_limit or _NO_QUEUE))
    return Login(user, password_of(key, user))


def recognize(keys: Iterable[str], user: str, password: str) -> ServiceUser | None:
    """The service whose login this is under one of ``keys``; None: nobody's."""
    service = ServiceUser.parse(user)
    known = [hmac.compare_digest(password_of(key, user).encode(), password.encode()) for key in keys]
    return service if service is not None and any(known) else None


def permissions(service: ServiceUser, *, earlier_versions: bool) -> Mapping[str, Mapping[str, list[str]]]:
    """What the pods of a service may publish and subscribe to, as in the claims of a NATS user.

    They use their stream and its consumers, but may not make or change a stream: whoever may can have it take messages
    from the streams and subjects of others. ``earlier_versions``: workers of versions before these logins make their
    stream themselves; where it exists, which the authorizer sees to, that changes nothing.
    """
    own = list(names.service_subjects(service.namespace, service.service_uid))
    publish = list(own)
    if service.has_queue:
        stream = names.prefill_stream(service.namespace, service.service_uid)
        publish += [
            names.prefill_subjects(service.namespace, service.service_uid),
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.STREAM.MSG.DELETE.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.INFO.{stream}.*",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
            f"$JS.ACK.{stream}.>",
        ]
        if earlier_versions:
            publish.append(f"$JS.API.STREAM.CREATE.{stream}")
    return {"pub": {"allow": publish}, "sub": {"allow": own}}


def _keyed(key: str, purpose: str) -> bytes:
    return hmac.digest(key.encode(), f"pointsman: {purpose}".encode(), hashlib.sha256)
