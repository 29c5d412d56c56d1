"""What a Secret says of a Prometheus: refused with its key, and never sent elsewhere than the Secret says."""

import base64

import pytest

from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus_access import Access, access_of

URL = "https://prometheus.monitoring.svc:9090"
WHERE = "Secret 'prometheus' (metrics.prometheusSecretRef)"


def secret(**keys: str) -> dict[str, str]:
    return {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in keys.items()}


@pytest.mark.parametrize(
    ("data", "access"),
    [
        (secret(url=URL, token="t0ken\n"), Access(token="t0ken")),
        (secret(url=f"{URL}/", username="u", password="p:w"), Access(basic=("u", "p:w"))),
        (secret(ca_crt="PEM"), Access(ca="PEM")),
        (secret(url=URL, token="t", ca_crt="PEM", other="x"), Access(token="t", ca="PEM")),
    ],
)
def test_token_user_and_ca_are_read(data: dict[str, str], access: Access) -> None:
    assert access_of(data, WHERE, f"{URL}/prefix") == access


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (secret(url=URL), "has none of the keys 'token', 'username' and 'password', 'ca.crt'"),
        (secret(url=URL, token="t", username="u"), "has a token and a username or password; keep one of the two"),
        (secret(url=URL, username="u"), "has no key 'password'; add it"),
        (secret(url=URL, password="p"), "has no key 'username'; add it"),
        (secret(url=URL, token=" "), "key 'token' is empty"),
        (secret(url=URL, token="a\nHost: b"), "key 'token' has a line break"),
        ({**secret(url=URL), "token": "/w=="}, "key 'token' is not UTF-8 text"),
        (secret(token="t"), "has no key 'url'; add the address to which its credentials may be sent"),
        (secret(url="https://evil.example", token="t"), "metrics.prometheusUrl is another address"),
        (secret(url=URL.replace("https", "http"), token="t"), "metrics.prometheusUrl is another address"),
    ],
)
def test_what_is_wrong_is_said_with_the_key_and_never_with_its_value(data: dict[str, str], said: str) -> None:
    with pytest.raises(PrometheusFailed) as error:
        access_of(data, WHERE, URL)
    assert WHERE in str(error.value)
    assert said in str(error.value)
    assert "evil" not in str(error.value)


def test_nothing_secret_is_shown() -> None:
    shown = repr(Access("s3cret", ("user", "s3cret"), "s3cret"))
    assert "s3cret" not in shown and "user" not in shown
