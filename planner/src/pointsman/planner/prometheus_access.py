"""What a Secret says of a Prometheus: where its credentials may be sent, the credentials, and the CA to trust."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus_urls import is_allowed

URL: Final = "url"
TOKEN: Final = "token"
USERNAME: Final = "username"
PASSWORD: Final = "password"
CA: Final = "ca.crt"


@dataclass(frozen=True, slots=True)
class Access:
    """At most one of ``token`` (sent as bearer) and ``basic`` (user, password). ``ca``: PEM, the only CAs to trust.

    No part is shown by ``repr``.
    """

    token: str | None = field(default=None, repr=False)
    basic: tuple[str, str] | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)


def access_of(data: Mapping[str, str], where: str, url: str) -> Access:
    """The access that the ``data`` of a Secret gives to ``url``. ``where``: the Secret, for messages.

    Credentials are sent only to the address that the Secret itself names: whoever may edit a policy, and not read the
    Secret, could name a server of theirs. Raises PrometheusFailed: key, what is wrong, and what would be right.
    """
    text = {key: _decoded(value, key, where) for key, value in data.items() if key in _KEYS}
    token, username, password = (text.get(key) for key in (TOKEN, USERNAME, PASSWORD))
    if token is not None and (username is not None or password is not None):
        raise PrometheusFailed(f"{where} has a {TOKEN} and a {USERNAME} or {PASSWORD}; keep one of the two")
    if (username is None) != (password is None):
        missing = PASSWORD if password is None else USERNAME
        raise PrometheusFailed(f"{where} has no key '{missing}'; add it: {USERNAME} and {PASSWORD} go together")
    basic = None if username is None or password is None else (username, password)
    if token is None and basic is None and CA not in text:
        raise PrometheusFailed(f"{where} has none of the keys '{TOKEN}', '{USERNAME}' and '{PASSWORD}', '{CA}'")
    if token is not None or basic is not None:
        if URL not in text:
            raise PrometheusFailed(f"{where} has no key '{URL}'; add the address to which its credentials may be sent")
        if not is_allowed(url, (text[URL],)):
            raise PrometheusFailed(
                f"the credentials of {where} may be sent to its '{URL}', and metrics.prometheusUrl is another address; "
                f"correct one of the two"
            )
    return Access(token, basic, text.get(CA))


_KEYS: Final = frozenset((URL, TOKEN, USERNAME, PASSWORD, CA))


def _decoded(value: str, key: str, where: str) -> str:
    try:
        text = base64.b64decode(value, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        raise PrometheusFailed(f"{where}: key '{key}' is not UTF-8 text") from None
    if not text:
        raise PrometheusFailed(f"{where}: key '{key}' is empty")
    if key != CA and not text.isprintable():
        raise PrometheusFailed(f"{where}: key '{key}' has a line break or a control character; write one line")
    return text
