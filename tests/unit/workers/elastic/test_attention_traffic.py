"""What members have to send for attention: whatever else they send is counted as KV that moved."""

from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.architecture import shape_of
from pointsman.workers.elastic.engine.attention_traffic import attention_bytes

SHAPE = shape_of(
    {"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128}
    | {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
)
"""3 layers, 4 heads of 16 numbers, 2 of them with keys and values: 128 bytes of bfloat16 a token and layer."""


def sent(prompts: list[Prompt], steps: list[Step], size: int) -> list[int]:
    return [attention_bytes(SHAPE, 2, prompts, steps, rank, size) for rank in range(size)]


def test_in_a_prefill_each_stripe_is_passed_on_by_all_but_the_last_that_gets_it() -> None:
    """By hand: of 7 tokens on 3 members, stripes have 3, 2 and 2; member 0 passes its own and that of member 2."""
    prompt = Prompt("r", tuple(range(7)), ((1, 7),))
    assert sent([prompt], [], 3) == [3 * 128 * tokens for tokens in (3 + 2, 2 + 3, 2 + 2)]
    assert sent([prompt], [], 1) == [0]


def test_who_keeps_the_kv_of_a_prompt_changes_nothing() -> None:
    kept = Prompt("r", tuple(range(7)), ((0, 3), (1, 2), (2, 2)))
    shrunk = Prompt("r", tuple(range(7)), ((2, 7),))
    assert sent([kept], [], 3) == sent([shrunk], [], 3)


def test_in_a_step_masters_send_queries_and_holders_send_what_they_found() -> None:
    """By hand: a query has 4 * 16 numbers of 2 bytes, an answer 4 * 17 of 4 bytes. Member 2 is a master that joins."""
    steps = [Step("p", 5, 9, 0, (0, 1)), Step("q", 5, 9, 2, (0, 1)), Step("s", 5, 9, 1, (1,))]
    query, answer = 4 * 16 * 2, 4 * 17 * 4
    assert sent([], steps, 3) == [3 * (query + answer), 3 * (2 * answer), 3 * (2 * query)]
