"""The blocks of the embedding buffer: contiguous, never given twice, never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.multimodal.transfer.allocator import MetadataAllocation, ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.errors import NoAllocation

steps = st.lists(
    st.tuples(st.sampled_from(["alloc", "alloc_up_to", "alloc_default", "free"]), st.integers(1, 400)), max_size=80
)


@given(blocks=st.integers(4, 40), block_size=st.integers(1, 9), steps=steps)
def test_allocations_never_overlap_and_all_blocks_come_back(
    blocks: int, block_size: int, steps: list[tuple[str, int]]
) -> None:
    allocator = ReqToMetadataBlockAllocator(blocks * block_size + block_size - 1, block_size, default_num_blocks=3)
    assert allocator.num_blocks == blocks, "a rest that is no whole block is not used"
    held: list[tuple[str, MetadataAllocation]] = []
    for number, (what, amount) in enumerate(steps):
        request, used = f"r{number}", {block for _, each in held for block in blocks_of(each)}
        longest = longest_run(set(range(blocks)) - used)
        tokens = amount % (blocks * block_size) + 1
        if what == "free":
            if held:
                request, allocation = held.pop(amount % len(held))
                allocator.free(allocation, request)
                used -= blocks_of(allocation)
        else:
            match what:
                case "alloc":
                    needed, found = -(-tokens // block_size), allocator.alloc(tokens, request)
                case "alloc_default":
                    needed, tokens, found = 3, 3 * block_size, allocator.alloc_default(request)
                case _:
                    needed, found = min(1, longest) or blocks + 1, allocator.alloc_up_to(amount, request)
                    tokens = min(amount, longest * block_size)
            assert (found is not None) == (needed <= longest), "it is given whenever a run is long enough"
            if found is not None:
                assert found.num_tokens == tokens
                assert found.num_blocks == -(-tokens // block_size)
                assert found.start_block >= 0
                assert found.start_block + found.num_blocks <= blocks
                assert not blocks_of(found) & used, "no block has two owners"
                held.append((request, found))
                used |= blocks_of(found)
        usage = allocator.usage
        free = set(range(blocks)) - used
        assert usage.used_blocks == len(used)
        assert usage.largest_free_blocks == longest_run(free), "neighbours that are free are one run"
        assert usage.occupancy == len(used) / blocks
        assert usage.fragmentation == (pytest.approx(1 - longest_run(free) / len(free)) if free else 0)
    for request, allocation in held:
        allocator.free(allocation, request)
    assert allocator.alloc(blocks * block_size, "all") == MetadataAllocation(0, blocks, blocks * block_size)


def blocks_of(allocation: MetadataAllocation) -> set[int]:
    return set(range(allocation.start_block, allocation.start_block + allocation.num_blocks))


def longest_run(blocks: set[int]) -> int:
    longest = run = 0
    for block in range(max(blocks, default=-1) + 1):
        run = run + 1 if block in blocks else 0
        longest = max(longest, run)
    return longest


def test_the_numbers_of_the_seed() -> None:
    allocator = ReqToMetadataBlockAllocator(8192)
    assert allocator.num_blocks == 64
    assert allocator.alloc_default("language") == MetadataAllocation(0, 8, 1024)
    assert allocator.alloc(2000, "encode") == MetadataAllocation(8, 16, 2000)
    assert allocator.alloc(976, "rest") == MetadataAllocation(24, 8, 976)
    assert ReqToMetadataBlockAllocator(64 * 8192).num_blocks == 4096


def test_only_the_owner_releases_and_only_once() -> None:
    allocator = ReqToMetadataBlockAllocator(4096)
    mine = allocator.alloc(300, "mine")
    assert mine is not None
    with pytest.raises(NoAllocation, match=r"request other cannot release .*: it belongs to request mine"):
        allocator.free(mine, "other")
    with pytest.raises(NoAllocation, match="it is not allocated"):
        allocator.free(MetadataAllocation(mine.start_block, 1, 128), "mine")
    allocator.free(mine, "mine")
    with pytest.raises(NoAllocation, match="it is not allocated"):
        allocator.free(mine, "mine")
    assert allocator.usage.used_blocks == 0


@pytest.mark.parametrize("tokens", [0, -1, 4097])
def test_a_length_that_never_fits_is_refused(tokens: int) -> None:
    allocator = ReqToMetadataBlockAllocator(4096)
    with pytest.raises(NoAllocation, match=rf"num_tokens is {tokens}: it must be 1 to 4096"):
        allocator.alloc(tokens, "r")
    if tokens < 1:
        with pytest.raises(NoAllocation, match=f"num_tokens is {tokens}: it must be at least 1"):
            allocator.alloc_up_to(tokens, "r")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1024,), r"total_tokens is 1024, which is 8 blocks .* more than default_num_blocks \(8\) .* at least 1152"),
        ((1024, 0), "block_size is 0: it must be at least 1"),
        ((1024, 128, 0), "default_num_blocks is 0: it must be at least 1"),
    ],
)
def test_a_buffer_that_cannot_work_is_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(NoAllocation, match=words):
        ReqToMetadataBlockAllocator(*arguments)


@given(data=st.data(), block_size=st.integers(1, 9), embedding_bytes=st.integers(1, 20))
def test_what_is_put_into_a_buffer_comes_out_chunk_by_chunk(
    data: st.DataObject, block_size: int, embedding_bytes: int
) -> None:
    allocator = ReqToMetadataBlockAllocator(20 * block_size, block_size, default_num_blocks=1)
    buffers = MultimodalDataBuffers(allocator, embedding_bytes)
    lengths = data.draw(st.lists(st.integers(1, 5 * block_size), min_size=1, max_size=4))
    held = {}
    for number, tokens in enumerate(lengths):
        allocation = allocator.alloc(tokens, f"r{number}")
        assert allocation is not None
        fields = [bytes([number * 3 + at + 1]) * (tokens * size) for at, size in enumerate((embedding_bytes, 4, 12))]
        buffers.set_buf(Embedding(tokens, *fields), allocation)
        held[allocation] = fields
    seen: set[int] = set()
    for allocation, fields in held.items():
        *views, aux = buffers.get_buf(allocation)
        assert [bytes(view) for view in views] == fields
        assert int.from_bytes(aux[:4], "little") == buffers.total_tokens(allocation) == allocation.num_tokens
        assert len(aux) == 64
        offset = data.draw(st.integers(0, allocation.num_tokens - 1))
        at_most = data.draw(st.integers(1, 50))
        tokens = min(at_most, allocation.num_tokens - offset)
        chunks = buffers.get_buf_chunk_info(allocation, offset, at_most)
        for (start, size), whole, of in zip(chunks, fields, (embedding_bytes, 4, 12), strict=False):
            assert buffers.region[start : start + size] == whole[offset * of :][: tokens * of]
        for start, size in buffers.get_buf_chunk_info(allocation):
            assert not seen & set(range(start, start + size)), "areas do not overlap"
            seen |= set(range(start, start + size))


def test_wrong_sizes_are_refused_by_name() -> None:
    allocator = ReqToMetadataBlockAllocator(4096)
    buffers = MultimodalDataBuffers(allocator, 10)
    allocation = allocator.alloc(5, "r")
    assert allocation is not None
    with pytest.raises(NoAllocation, match="fill_ids has 19 bytes: it must have 20, 4 for each of 5 tokens"):
        buffers.set_buf(Embedding(5, bytes(50), bytes(19), bytes(60)), allocation)
    with pytest.raises(NoAllocation, match="num_tokens is 4: it must be 5"):
        buffers.set_buf(Embedding(4, bytes(40), bytes(16), bytes(48)), allocation)
    with pytest.raises(NoAllocation, match="offset_tokens is 5"):
        buffers.get_buf_chunk_info(allocation, 5)
    with pytest.raises(NoAllocation, match=r"region has 3 bytes: it must have \d+"):
        MultimodalDataBuffers(allocator, 10, bytearray(3))
