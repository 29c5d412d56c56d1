"""The only gateway goes under load: clients that use its Service notice nothing."""

from engine.product.served import MIX, MODEL_NAME, WAIT_SECONDS, Served, errors, evict, gateways
from pointsman.local.traffic import Endpoint, prompts, running_load
from waiting import eventually


def delete(chat: Served, pod: str) -> None:
    chat.kubectl("delete", "pod", pod, "--wait=false")


async def test_the_only_gateway_is_deleted_and_then_evicted_under_load_and_no_request_fails(chat: Served) -> None:
    url = chat.cluster.service_url(chat.name)
    async with (
        Endpoint(url, MODEL_NAME, timeout_seconds=WAIT_SECONDS) as endpoint,
        running_load(endpoint, prompts(MIX, seed=131), clients=3) as traffic,
    ):
        for take_away in (delete, evict):
            ((before, ready),) = gateways(chat).items()
            assert ready
            await traffic.answered(5, timeout_seconds=120)
            take_away(chat, before)

            def replaced(gone: str = before) -> bool:
                found = gateways(chat)
                return gone not in found and list(found.values()) == [True]

            await eventually(replaced, "another gateway has taken its place")
            await traffic.answered(5, timeout_seconds=120)
    assert errors(traffic.records) == []
