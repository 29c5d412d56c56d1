"""Logins of services on the chart's NATS server: whose they are, and what they may do."""

import base64
import json
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.limits import WorkerLimits
from pointsman.operator.core.nats_claims import AuthorizationRequest, Issuer, MalformedRequest
from pointsman.operator.core.nats_config import ServerLogins, server_configuration
from pointsman.operator.core.nats_credentials import NatsCredentials
from pointsman.operator.core.nats_logins import (
    OPERATOR_USER,
    ServiceUser,
    issuer_seed,
    password_of,
    permissions,
    recognize,
    service_login,
)
from unit.operator.world import service, spec

KEY: Final = "k" * 40
OTHER_KEY: Final = "o" * 40
TOKENS: Final = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
SERVICES: Final = st.builds(ServiceUser, TOKENS, TOKENS, st.integers(0, 100_000))


@given(SERVICES)
def test_a_login_is_recognized_as_its_service_and_under_its_key_only(user: ServiceUser) -> None:
    login = service_login(KEY, user.namespace, user.service_uid, user.queue_limit)
    assert recognize([KEY], login.user, login.password) == user
    assert recognize([OTHER_KEY, KEY], login.user, login.password) == user
    assert recognize([OTHER_KEY], login.user, login.password) is None
    assert recognize([KEY], login.user, "") is None


@given(SERVICES, SERVICES)
def test_no_login_opens_another_service(one: ServiceUser, other: ServiceUser) -> None:
    if one == other:
        return
    assert recognize([KEY], str(other), password_of(KEY, str(one))) is None


@pytest.mark.parametrize(
    "user",
    ["", "pointsman", OPERATOR_USER, "a.b", "a.b.", "a.b.-1", "a.b.01", "a.*.1", "a.>.1", "a.b.c.1", "a.b.\u0661"],
)
def test_what_is_no_service_is_no_service_even_with_the_right_password(user: str) -> None:
    assert recognize([KEY], user, password_of(KEY, user)) is None


def _matches(pattern: str, subject: str) -> bool:
    """As NATS matches them."""
    parts, tokens = pattern.split("."), subject.split(".")
    for place, part in enumerate(parts):
        if part == ">":
            return len(tokens) > place
        if place >= len(tokens) or part not in ("*", tokens[place]):
            return False
    return len(parts) == len(tokens)


def _subjects(user: ServiceUser) -> dict[str, str]:
    """One subject of each kind that a service has, by kind."""
    at = (user.namespace, user.service_uid)
    return {
        "prefill": names.prefill_subject(*at, "kv"),
        "reply": names.reply_inbox_prefix(*at, "w-0") + ".x.y",
        "signal": names.prefill_signal_subject(*at, "kv"),
        "presence": names.prefill_presence_subject(*at, "kv"),
        "kv": names.kv_metrics_subject(*at, "w-0"),
        "elastic": names.elastic_presence_subject(*at),
    }


@given(SERVICES, SERVICES, st.booleans())
def test_a_service_reaches_its_own_subjects_and_none_of_another(
    mine: ServiceUser, other: ServiceUser, earlier: bool
) -> None:
    rights = permissions(mine, earlier_versions=earlier)
    publish, subscribe = rights["pub"]["allow"], rights["sub"]["allow"]
    for kind, subject in _subjects(mine).items():
        assert any(_matches(each, subject) for each in publish) == (kind != "prefill" or mine.has_queue)
        # A prompt on the queue is read through the stream's consumer only.
        assert any(_matches(each, subject) for each in subscribe) == (kind != "prefill")
    if (other.namespace, other.service_uid) == (mine.namespace, mine.service_uid):
        return
    theirs = names.prefill_stream(other.namespace, other.service_uid)
    forbidden = [*_subjects(other).values(), f"$JS.API.CONSUMER.MSG.NEXT.{theirs}.prefill-kv", f"$JS.ACK.{theirs}.c.1"]
    for subject in (*forbidden, "_INBOX.x.y", "$SYS.REQ.USER.AUTH", "$JS.API.STREAM.LIST"):
        assert not any(_matches(each, subject) for each in (*publish, *subscribe)), subject


def test_only_services_with_pods_of_earlier_versions_may_make_a_stream() -> None:
    user = ServiceUser("ns", "uid", 5)
    made = f"$JS.API.STREAM.CREATE.{names.prefill_stream('ns', 'uid')}"
    assert made in permissions(user, earlier_versions=True)["pub"]["allow"]
    rights = permissions(user, earlier_versions=False)["pub"]["allow"]
    assert not any("STREAM.CREATE" in each or "STREAM.UPDATE" in each for each in rights)


def test_each_service_gets_the_login_of_its_own_queue() -> None:
    nats = NatsCredentials("pointsman", "shared", KEY)
    limited = spec()
    limited = limited.model_copy(
        update={"worker": limited.worker.model_copy(update={"limits": WorkerLimits(max_queued_prefills=7)})}
    )
    assert nats.of_service(service(spec())).user == "default.u-chat.1024"
    assert nats.of_service(service(limited)).user == "default.u-chat.7"
    assert nats.of_operator().user == OPERATOR_USER


def test_without_a_key_all_services_have_the_shared_login_as_before() -> None:
    nats = NatsCredentials("pointsman", "shared")
    assert (nats.of_service(service(spec())).user, nats.of_service(service(spec())).password) == ("pointsman", "shared")
    assert nats.of_operator() == nats.of_service(service(spec()))


def test_no_password_is_shown() -> None:
    login = service_login(KEY, "ns", "uid", 5)
    request = AuthorizationRequest("S", "U", "user", "hidden-password", "client")
    logins = ServerLogins(shared_user="u", shared_password="hidden-password", service_key=KEY, accepts_shared=True)
    shown = f"{login!r} {login} {request!r} {logins!r} {NatsCredentials('u', 'hidden-password', KEY)!r}"
    assert login.password not in shown
    assert "hidden-password" not in shown
    assert KEY not in shown


def _token(claims: object) -> bytes:
    return b"x." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b".x"


@pytest.mark.parametrize(
    "token", [b"", b"x", b"a.b.c", _token([]), _token({"nats": {}}), _token({"nats": {"connect_opts": []}})]
)
def test_what_is_no_request_is_refused_with_an_error_of_its_own(token: bytes) -> None:
    with pytest.raises(MalformedRequest):
        AuthorizationRequest.decode(token)


def test_an_answer_is_signed_by_the_issuer_that_the_configuration_names() -> None:
    issuer = Issuer(issuer_seed(KEY))
    assert issuer.public_key.startswith("A")
    assert len(issuer.public_key) == 56
    logins = ServerLogins(shared_user="u", shared_password="p", service_key=KEY, accepts_shared=False)
    text = server_configuration(
        logins, name="n", host="::1", port=1, monitor_port=2, store="/s", memory="1MiB", file="1MiB"
    )
    assert issuer.public_key in text
    assert '"u"' not in text  # the shared login is not let in
    answer = issuer.refuse(AuthorizationRequest("S", "U", "", "", ""), "no", now_s=1.0)
    signed, _, signature = answer.rpartition(".")
    raw = base64.b32decode(issuer.public_key)[1:-2]
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.urlsafe_b64decode(signature + "=="), signed.encode())
