"""Chained block hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.block_hashes import chained_block_hashes

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=80)


@given(first=tokens, second=tokens, block_size=st.integers(1, 16))
def test_two_prompts_share_exactly_the_hashes_of_their_common_blocks(
    first: list[int], second: list[int], block_size: int
) -> None:
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    a, b = chained_block_hashes(first, block_size), chained_block_hashes(second, block_size)
    shared = common // block_size
    assert len(a) == len(first) // block_size
    assert a[:shared] == b[:shared]
    assert all(x != y for x, y in zip(a[shared:], b[shared:], strict=False))


@given(prompt=tokens, block_size=st.integers(1, 16))
def test_a_chain_continues_from_its_parent(prompt: list[int], block_size: int) -> None:
    whole = chained_block_hashes(prompt, block_size)
    if len(whole) > 1:
        assert whole[1:] == chained_block_hashes(prompt[block_size:], block_size, parent=whole[0])


def test_a_salt_separates_prefixes_that_are_otherwise_equal() -> None:
    prompt = list(range(32))
    plain, salted = (chained_block_hashes(prompt, 16, salt=salt) for salt in (None, "tenant-a"))
    assert not set(plain) & set(salted)


def test_hashes_are_the_same_in_every_process() -> None:
    assert chained_block_hashes([1, 2, 3, 4], 2) == chained_block_hashes((1, 2, 3, 4), 2)
    assert chained_block_hashes([1, 2], 2) == [GOLDEN]


GOLDEN = 1334422252672281394  # of the first release: a change would make running gateways and workers disagree


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        chained_block_hashes([1], 0)
