"""User and password of a URL are masked wherever the URL stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.credentials import mask_credentials


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://planner:s3cr3t@prometheus:9090", "http://***@prometheus:9090"),
        ("https://token@prometheus/base", "https://***@prometheus/base"),
        ("nats://u:p%40q@10.0.0.1:4222", "nats://***@10.0.0.1:4222"),
        ("tls://u:pa/ss@[fd00::1]:4222", "tls://***@[fd00::1]:4222"),
        ("nats://a:b@one:4222,nats://c:d@two:4222", "nats://***@one:4222,nats://***@two:4222"),
        ("'http://u:p@h' cannot be reached: http://u:p@h/api", "'http://***@h' cannot be reached: http://***@h/api"),
        ('{"url": "http://u:p@h", "mail": "a@b.c"}', '{"url": "http://***@h", "mail": "a@b.c"}'),
    ],
)
def test_user_and_password_are_masked_and_nothing_else(text: str, masked: str) -> None:
    assert mask_credentials(text) == masked
    assert mask_credentials(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        *("", "no URL", "a@b.c", "http://h:9090/path", "nats://h:4222", "http://h says a@b.c"),
        *("oci://registry:5000/m@sha256:1", "hf://org/m@v1"),
    ],
)
def test_text_without_credentials_stays_as_it_is(text: str) -> None:
    assert mask_credentials(text) == text


SECRET = st.from_regex(r"[A-Za-z!$&()*+,;=%._~:@-][\\w!$&()*+,;=/%.~:@-]{5,30}", fullmatch=True)


HOSTS = st.sampled_from(["h", "h:9090/x", "10.0.0.1"])


@given(st.sampled_from(["http", "https", "nats", "tls"]), SECRET, HOSTS)
def test_no_password_survives(scheme: str, secret: str, host: str) -> None:
    masked = mask_credentials(f"lost {scheme}://user:{secret}@{host}: refused")
    assert masked == f"lost {scheme}://***@{host}: refused"
