"""The configuration of the chart's NATS server, as text."""

from dataclasses import dataclass

from pointsman.operator.core.nats_claims import Issuer
from pointsman.operator.core.nats_logins import (
    AUTHORIZER_USER,
    OPERATOR_USER,
    SYSTEM_ACCOUNT,
    Login,
    issuer_seed,
    password_of,
)

AUTHORIZATION_TIMEOUT_S = 5  # the authorizer looks for the service's stream before it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLogins:
    """``service_key`` None: the shared login is the only one. ``accepts_shared``: it is let in beside the others."""

    shared_user: str
    shared_password: str
    service_key: str | None
    accepts_shared: bool

    def __repr__(self) -> str:
        return f"ServerLogins(shared_user={self.shared_user!r}, accepts_shared={self.accepts_shared})"


def server_configuration(
    logins: ServerLogins, *, name: str, host: str, port: int, monitor_port: int, store: str, memory: str, file: str
) -> str:
    """The whole file. ``memory`` and ``file`` with their unit (``256MiB``); ``host`` without brackets."""
    at = f"[{host}]" if ":" in host else host
    lines = [
        f"server_name: {_quoted(name)}",
        f"listen: {_quoted(f'{at}:{port}')}",
        f"http: {_quoted(f'{at}:{monitor_port}')}",
        f"jetstream {{ store_dir: {_quoted(store)}, max_mem: {memory}, max_file: {file} }}",
        *_authorization(logins),
    ]
    return "\n".join(lines) + "\n"


def _authorization(logins: ServerLogins) -> list[str]:
    shared = Login(logins.shared_user, logins.shared_password)
    key = logins.service_key
    if key is None:
        return [f"authorization {_user(shared)}"]
    authorizer = Login(AUTHORIZER_USER, password_of(key, AUTHORIZER_USER))
    known = [Login(OPERATOR_USER, password_of(key, OPERATOR_USER)), *([shared] if logins.accepts_shared else [])]
    users = ", ".join(_quoted(login.user) for login in (authorizer, *known))
    return [
        f"system_account: {SYSTEM_ACCOUNT}",
        f"accounts {{ {SYSTEM_ACCOUNT} {{ users: [{_user(authorizer)}] }} }}",
        "authorization {",
        f"  timeout: {AUTHORIZATION_TIMEOUT_S}",
        f"  users: [{', '.join(_user(login) for login in known)}]",
        # Whoever is not listed is asked about at the authorizer, which subscribes in the system account.
        f"  auth_callout {{ issuer: {Issuer(issuer_seed(key)).public_key}, account: {SYSTEM_ACCOUNT}, "
        f"auth_users: [{users}] }}",
        "}",
    ]


def _user(login: Login) -> str:
    return f"{{ user: {_quoted(login.user)}, password: {_quoted(login.password)} }}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
