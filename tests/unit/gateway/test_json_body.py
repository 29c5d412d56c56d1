"""What a body may hold, and that the bound is found before it is decoded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.json_body import (
    BYTES_PER_CONTAINER,
    BYTES_PER_SEPARATOR,
    MAX_NESTING,
    Structure,
    decode_body,
)
from pointsman.gateway.errors import RequestInvalid

MAX_BYTES = 2**22
MAX_CONTAINERS, MAX_SEPARATORS = MAX_BYTES // BYTES_PER_CONTAINER, MAX_BYTES // BYTES_PER_SEPARATOR

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.text('\\"[{,a', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_a_body_is_what_it_says_with_a_byte_order_mark_or_without(value: Any, mark: bool) -> None:
    assert decode_body(b"\xef\xbb\xbf" * mark + json.dumps(value).encode()) == value


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize(("levels", "accepted"), [(MAX_NESTING, True), (MAX_NESTING + 1, False), (100_000, False)])
def test_nesting_has_a_bound(opening: str, levels: int, accepted: bool) -> None:
    closing = "]" if opening == "[" else "}"
    body = (opening * levels + "1" + closing * levels).encode()
    if accepted:
        decode_body(body)
    else:
        with pytest.raises(RequestInvalid, match=f"nested too deeply; at most {MAX_NESTING} levels"):
            decode_body(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'"\xc3"', b'"\\ud800"', b"1e400", b"NaN", b"\x00", "{}".encode("utf-16"), b"{}{}"]
)
def test_what_is_no_json_is_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(RequestInvalid, match="is not JSON"):
        decode_body(body)


@given(JSON.map(json.dumps), st.integers(1, 5))
def test_marks_inside_strings_do_not_count_however_the_body_is_cut(body: str, size: int) -> None:
    structure = Structure(MAX_BYTES)
    for start in range(0, len(body), size):
        structure.feed(body[start : start + size].encode())
    containers = separators = 0
    for kind, value in tokens(body):
        containers += kind == "mark" and value in "[{"
        separators += kind == "mark" and value == ","
    assert (structure.containers, structure.separators) == (containers, separators)


def tokens(body: str) -> list[tuple[str, str]]:
    """The strings and marks of ``body``, by Python's own reader of strings."""
    found, at = [], 0
    while at < len(body):
        if body[at] == '"':
            text, at = json.JSONDecoder().raw_decode(body, at)
            found.append(("string", text))
        else:
            found.append(("mark", body[at]))
            at += 1
    return found


def test_a_prompt_of_code_is_no_structure() -> None:
    structure = Structure(MAX_BYTES)
    structure.feed(json.dumps({"prompt": '[{"a\\": [1, 2]},' * 2 * MAX_CONTAINERS}).encode())
    assert structure.decoded_bytes == 100


def test_containers_and_separators_have_a_bound_that_pieces_do_not_hide() -> None:
    structure = Structure(MAX_BYTES)
    for _ in range(8):
        structure.feed(b"[{" * (MAX_CONTAINERS // 16))
    with pytest.raises(RequestInvalid, match=f"more than {MAX_CONTAINERS} opening brackets .*maxBodyMiB"):
        structure.feed(b"[")
    commas = Structure(MAX_BYTES)
    commas.feed(b"," * MAX_SEPARATORS)
    with pytest.raises(RequestInvalid, match=f"more than {MAX_SEPARATORS} commas"):
        commas.feed(b"1,1")
    assert commas.decoded_bytes >= 40 * MAX_SEPARATORS
