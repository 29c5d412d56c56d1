"""What the planner sees of real engines."""

from fixtures.engine_service import Service
from fixtures.engines import SMALL_ENGINE
from pointsman.api.protocol.names import Role
from pointsman.planner.core.metrics.observe import Seen, observation
from pointsman.planner.core.types import Objectives, Observation, RoutingNumbers, Worker, WorkerCondition
from pointsman.planner.scraper import Scraper

ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}


async def test_the_planner_knows_the_limits_that_the_engines_have(service: Service) -> None:
    urls = {name: f"{worker.url}/metrics" for name, worker in service.workers.items()}
    async with Scraper(timeout_s=10.0) as scraper:

        async def look() -> Observation:
            await scraper.scrape(urls)
            seen = [
                Seen(Worker(name, role, WorkerCondition.ACTIVE), scraper.reading(name)) for name, role in ROLES.items()
            ]
            return observation(
                at_s=0, age_s=0, gateways=[], workers=seen, routing=RoutingNumbers(512, 8),
                objectives=Objectives(), plan_in_progress=False,
            )  # fmt: skip

        await look()
        found = await look()
    told = dict(zip(SMALL_ENGINE[::2], SMALL_ENGINE[1::2], strict=True))
    assert found.max_sequences == int(told["--max-num-seqs"])
    assert found.kv_capacity_tokens == 32_768, told["--kv-cache-memory-bytes"]
