"""JSON bodies: read as the engine reads them, extended without being written anew, refused without a crash."""

import codecs
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.core.bodies import as_utf8, dump, json_object, with_fields

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(), VALUES, min_size=1, max_size=6)


@given(OBJECTS, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"]))
def test_a_field_that_is_set_is_what_the_engine_reads(body: dict[str, Any], escaped: bool, encoding: str) -> None:
    raw = b" \n" * (encoding == "utf-8") + json.dumps(body, ensure_ascii=escaped).encode(encoding, "surrogatepass")
    read = json_object(raw)
    assert read == body
    text = as_utf8(raw, read)
    fields = {"prompt": (1, 2, 3), "kv_transfer_params": {"prompt_token_ids": (4, 5)}}
    assert json.loads(with_fields(text, fields)) == body | {
        "prompt": [1, 2, 3],
        "kv_transfer_params": {"prompt_token_ids": [4, 5]},
    }
    assert with_fields(text, {}) == text
    assert json.loads(text) == json.loads(dump(read)) == body


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\ue0d8ntf19-. ', max_size=40).map(str.encode))
def test_it_reads_exactly_what_pythons_json_reads(raw: bytes) -> None:
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    assert repr(json_object(raw)) == repr(value if isinstance(value, dict) else None)


@pytest.mark.parametrize(
    "raw", [b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": 1e400}', b'{"a": 1, "a": 2}', codecs.BOM_UTF8 + b'{"a": 1}']
)
def test_what_the_engine_takes_beyond_the_standard_is_read_too(raw: bytes) -> None:
    body = json_object(raw)
    assert body is not None
    assert repr(body) == repr(json.loads(raw))
    assert repr(json.loads(with_fields(as_utf8(raw, body), {"b": 1}))) == repr(json.loads(raw) | {"b": 1})


@pytest.mark.parametrize("raw", [b"[" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_a_body_nested_too_deeply_is_said_to_be(raw: bytes) -> None:
    with pytest.raises(RecursionError):
        json_object(raw)
