"""What /metrics shows of the router's inputs: seven values per worker, their age, nothing that is not known."""

from random import Random
from typing import Any

from pointsman.api.protocol.control import ModelInfo
from pointsman.api.protocol.kv import KV_METRICS_STALE_SECONDS, KvMetrics
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.processor import Model
from pointsman.gateway.router_inputs import RouterInputs
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import Discovered, Worker, WorkerKey

SEVEN: dict[str, Any] = {
    "request_active_slots": 5,
    "request_total_slots": 256,
    "kv_active_blocks": 200,
    "kv_total_blocks": 10_000,
    "num_requests_waiting": 0,
    "gpu_cache_usage_perc": 0.02,
    "gpu_prefix_cache_hit_rate": 0.5,
}


class World:
    """A gateway's metrics over workers ``a`` and ``b``, with a clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.feed = KvMetricsFeed(Settings(service="chat"), clock=lambda: self.now_s)
        self.index = KvIndex(max_blocks=3)
        self.fleet = Fleet(
            clock=lambda: self.now_s,
            rng=Random(1),
            cost=token_load,
            index=self.index,
            load_of=self.feed.load_of,
            suspect_seconds=1.0,
        )
        self.metrics = GatewayMetrics("chat")
        self.metrics.registry.register(RouterInputs("chat", self.fleet, self.feed))
        self.discover("a", "b")

    def discover(self, *names: str) -> None:
        self.fleet.apply(Discovered(tuple(Worker(WorkerKey(n), n, f"http://{n}", Role.DECODE) for n in names)))

    def publish(self, worker: str, sequence: int = 1, **values: Any) -> None:
        self.feed.take(KvMetrics(worker=worker, instance="i", sequence=sequence, **values).wire().encode())

    def shown(self, worker: str) -> dict[str, float]:
        """The per-worker samples of ``worker``, by what follows the common prefix of their names."""
        found = {}
        for line in self.metrics.expose().decode().splitlines():
            if line.startswith("pointsman_gateway_worker_") and f'worker="{worker}"' in line:
                name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
                found[name.removeprefix("pointsman_gateway_worker_")] = value
        return found

    def value(self, name: str) -> float:
        lines = self.metrics.expose().decode().splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def test_all_seven_values_are_shown_with_their_age() -> None:
    world = World()
    world.publish("a", **SEVEN)
    world.now_s += 1.5
    assert world.shown("a") == SEVEN | {"metrics_age_seconds": 1.5, "indexed_blocks": 0}
    assert world.shown("b") == {"indexed_blocks": 0}


def test_what_is_unknown_or_old_is_absent_and_not_zero() -> None:
    world = World()
    world.publish("a", num_requests_waiting=3)
    assert world.shown("a") == {"num_requests_waiting": 3, "metrics_age_seconds": 0, "indexed_blocks": 0}
    world.now_s += KV_METRICS_STALE_SECONDS + 1
    assert world.shown("a") == {"metrics_age_seconds": KV_METRICS_STALE_SECONDS + 1, "indexed_blocks": 0}


def test_a_worker_that_left_is_no_longer_a_label() -> None:
    world = World()
    world.publish("a", **SEVEN)
    world.publish("stranger", **SEVEN)
    assert world.shown("stranger") == {}
    world.discover("b")
    assert world.shown("a") == {}
    world.discover("a", "b")
    assert world.shown("a")["request_active_slots"] == 5


def test_the_index_is_shown_with_its_evictions() -> None:
    world = World()
    world.index.stored_chain(WorkerKey("a"), [1, 2, 3], parent=None)
    world.index.stored_chain(WorkerKey("b"), [4], parent=None)
    assert world.value("pointsman_gateway_kv_index_blocks") == 3
    assert world.value("pointsman_gateway_kv_index_evictions_total") == 1
    assert (world.shown("a")["indexed_blocks"], world.shown("b")["indexed_blocks"]) == (2, 1)


def test_a_second_gateway_avoids_the_worker_that_the_first_one_gave_streams() -> None:
    first, second = World(), World()
    info = ModelInfo(served_name="m", max_model_len=8192, block_size=16, files=(), digest="d")
    for world in (first, second):
        for name in ("a", "b"):
            world.fleet.set_model(WorkerKey(name), Model(info, None, text_verified=True, chat_verified=True))

    def pick(world: World, *avoid: str) -> str:
        found = world.fleet.pick(prompt_tokens=100, chain=(), digest=None, avoid={WorkerKey(a) for a in avoid})
        assert found is not None
        found.entry.produced(1)
        return found.worker.name

    assert [pick(first, "b") for _ in range(3)] == ["a", "a", "a"]
    # Both workers report what their engines compute, far from full and with nothing in the queue.
    for world in (first, second):
        world.publish(
            "a", num_requests_waiting=0, gpu_cache_usage_perc=0.02, request_active_slots=3, kv_active_blocks=21
        )
        world.publish("b", num_requests_waiting=0, gpu_cache_usage_perc=0.0, request_active_slots=0, kv_active_blocks=0)
    assert [pick(second) for _ in range(3)] == ["b", "b", "b"]
