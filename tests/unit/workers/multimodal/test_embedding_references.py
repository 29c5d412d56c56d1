"""Which ``ec_transfer_params`` an engine follows."""

import dataclasses

from pointsman.workers.multimodal.exchange.references import EmbeddingReference, references

TOKEN = "the-token-of-the-service"
REFERENCE = EmbeddingReference("item", "10.0.0.7:5650", "key", 576, 8192, "bfloat16", "model")


def test_an_entry_sealed_with_the_services_token_is_read_back() -> None:
    other = dataclasses.replace(REFERENCE, item="other", key="another")
    params = {"item": REFERENCE.sealed(TOKEN), "other": other.sealed(TOKEN)}
    assert references(params, TOKEN) == {"item": REFERENCE, "other": other}
    assert REFERENCE.size_bytes == 576 * 8192


def test_an_entry_of_another_service_is_not_followed() -> None:
    assert references({"item": REFERENCE.sealed("a-token-of-another-one")}, TOKEN) == {}


def test_an_entry_that_was_changed_is_not_followed() -> None:
    entry = REFERENCE.sealed(TOKEN)
    changed = {
        "address": "10.0.0.8:5650", "key": "else", "num_tokens": 577, "token_bytes": 4096, "dtype": "float32",
        "model": "another",
    }  # fmt: skip
    for name, value in changed.items():
        assert references({"item": {**entry, name: value}}, TOKEN) == {}, name
    assert references({"another item": entry}, TOKEN) == {}, "it is of one item only"


def test_what_is_no_entry_is_not_followed() -> None:
    entry = REFERENCE.sealed(TOKEN)
    without = [{name: value for name, value in entry.items() if name != missing} for missing in entry]
    wrongs: list[object] = [*without, None, "text", [], {**entry, "seal": "ü"}, {**entry, "num_tokens": True}]
    for wrong in wrongs:
        assert references({"item": wrong}, TOKEN) == {}, wrong
    others: list[object] = [None, [], "text", 7]
    for params in others:
        assert references(params, TOKEN) == {}
