"""KV that travels between two engines gives the tokens of one engine; and this check can fail."""

import random

from engine.vllm.by_hand import Hand, TransferParams
from fixtures.engines import PlainEngines

SEED = 20250325
BLOCK = 128
PRINTABLE = range(94)  # token ids of "!" to "~": one token a byte, in the order of the bytes
LENGTHS = (1, 2, 31, 127, 128, 129, 255, 256, 257, 384, 700, 1024, 1500, 3000)


def prompts_of(lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.choice(PRINTABLE) for _ in range(length)] for length in lengths]


async def test_the_reference_gives_the_same_tokens_one_at_a_time_and_eight_at_a_time(
    plain_engines: PlainEngines, hand: Hand
) -> None:
    prompts = prompts_of(LENGTHS * 2, SEED)
    alone = await hand.ask_all(plain_engines.one, prompts, at_once=1)
    together = await hand.ask_all(plain_engines.prefill, prompts, at_once=8)  # an engine that has cached none of them
    assert alone == together


async def test_prefill_and_decode_apart_give_the_tokens_of_one_engine(plain_engines: PlainEngines, hand: Hand) -> None:
    prompts = prompts_of(LENGTHS, SEED + 1)
    expected = await hand.ask_all(plain_engines.one, prompts, at_once=1)
    labels = {"source": "external_kv_transfer"}
    before = await hand.metric(plain_engines.decode, "vllm:prompt_tokens_by_source_total", **labels)
    found = [await hand.ask_apart(plain_engines.prefill, plain_engines.decode, prompt) for prompt in prompts]
    pulled = await hand.metric(plain_engines.decode, "vllm:prompt_tokens_by_source_total", **labels) - before
    assert found == expected
    # All but the last token of each prompt came from the other engine: it was no local prefill.
    assert pulled >= sum(LENGTHS) - len(LENGTHS)


async def test_the_same_engines_serve_with_their_roles_exchanged(plain_engines: PlainEngines, hand: Hand) -> None:
    for prompt in prompts_of((200, 900), SEED + 2):
        expected = await hand.ask(plain_engines.one, prompt)
        assert await hand.ask_apart(plain_engines.decode, plain_engines.prefill, prompt) == expected


async def test_an_answer_depends_on_a_token_far_back(plain_engines: PlainEngines, hand: Hand) -> None:
    changed = 0
    prompts = prompts_of((1300,) * 8, SEED + 3)
    for prompt in prompts:
        other = [*prompt]
        other[100] = (other[100] + 1) % len(PRINTABLE)
        changed += await hand.ask(plain_engines.one, prompt) != await hand.ask(plain_engines.one, other)
    assert changed >= len(prompts) * 3 // 4, f"{changed} of {len(prompts)}: equal tokens would prove little"


async def test_a_corrupted_transfer_is_noticed(plain_engines: PlainEngines, hand: Hand) -> None:
    # Exchanging two blocks would change nothing: keys carry their positions, and attention has no order of its own.
    def first_block_twice(params: TransferParams) -> TransferParams:
        [[first, _second, *rest]] = params["remote_block_ids"]
        return params | {"remote_block_ids": [[first, first, *rest]]}

    noticed = 0
    prompts = prompts_of((3 * BLOCK + 5,) * 4, SEED + 4)
    for prompt in prompts:
        expected = await hand.ask(plain_engines.one, prompt)
        found = await hand.ask_apart(plain_engines.prefill, plain_engines.decode, prompt, first_block_twice)
        noticed += found != expected
    assert noticed == len(prompts)


async def test_transfer_parameters_of_another_prompt_are_noticed(plain_engines: PlainEngines, hand: Hand) -> None:
    mine, other = prompts_of((2 * BLOCK + 9, 2 * BLOCK + 9), SEED + 5)
    expected = await hand.ask(plain_engines.one, mine)
    wrong = await hand.prefill(plain_engines.prefill, other)
    assert await hand.decode(plain_engines.decode, mine, wrong) != expected
