"""From pages to an Observation, with pages that a gateway and vLLM workers really write."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.metrics import TpotVerdict, TtftVerdict
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import PrefillOutcome
from pointsman.gateway.metrics import GatewayMetrics, ImagePath
from pointsman.planner.core.metrics.observe import Reading, Seen, observation, prefilled_together
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.core.types import (
    EngineSample,
    Load,
    Objectives,
    Observation,
    RoutingNumbers,
    Uncached,
    Worker,
    WorkerCondition,
)
from pointsman.planner.core.workload.prefix_cache_hits import Prefixes
from pointsman.planner.exposition import parse
from pointsman.serving.local_remote import PrefillReason
from pointsman.serving.objectives import Objectives as GatewayObjectives
from pointsman.workers.metrics import WorkerMetrics

OBJECTIVES = Objectives(ttft_ms=1000, tpot_ms=50)
ROUTING = RoutingNumbers(512, 32)
CAPTURES = Path(__file__).parents[1] / "captures"


class Gateway:
    """A gateway's page, by the gateway's own code. ``objectives``: that are in force at it."""

    def __init__(self, objectives: Objectives | None = OBJECTIVES) -> None:
        self.metrics = GatewayMetrics("chat")
        self.follow(objectives)

    def follow(self, objectives: Objectives | None) -> None:
        goals = objectives and GatewayObjectives(
            objectives.ttft_ms / 1000, objectives.tpot_ms / 1000, objectives.ttft_ms_per_prompt_token / 1000
        )
        self.metrics.set_objectives(goals or None)

    def request(
        self, ttft_s: float, tpot_s: float, prompt: int, output: int, path: str = "local", streamed: bool = True
    ) -> None:
        self.metrics.arrived("completions")
        self.metrics.accepted.inc()
        self.metrics.prompt_tokens.observe(prompt)
        self.metrics.finished(prompt, output)
        if streamed:
            self.metrics.by_path(path).ttft.observe(ttft_s)
            self.metrics.by_path(path).tpot.observe(tpot_s)
        first = self.metrics.got_first_token(ttft_s, prompt)
        self.metrics.ended(first, self.metrics.tpot_verdict(tpot_s) if output > 1 else TpotVerdict.NONE)

    def page(self) -> Page:
        return parse(self.metrics.expose().decode())

    def earlier_page(self) -> Page:
        """As the version before wrote it, without what is counted against objectives."""
        added = (
            named.GATEWAY_ACCEPTED, named.GATEWAY_ACCEPTED_REFUSED, named.GATEWAY_FIRST_TOKENS, named.GATEWAY_ENDED,
            named.GATEWAY_OBJECTIVE,
        )  # fmt: skip
        return {name: samples for name, samples in self.page().items() if name not in {each.name for each in added}}


def worker(name: str = "w0", role: Role = Role.DECODE) -> Worker:
    return Worker(name, role, WorkerCondition.ACTIVE)


def seen(gateways: list[Reading], workers: list[Seen], objectives: Objectives = OBJECTIVES) -> Observation:
    return observation(
        at_s=100, age_s=1, gateways=gateways, workers=workers, routing=ROUTING, objectives=objectives,
        plan_in_progress=False,
    )  # fmt: skip


def test_load_and_attainment_come_from_what_changed_between_two_readings() -> None:
    gateway = Gateway()
    gateway.request(9.0, 9.0, 9000, 9000)  # before: it must not count
    before = gateway.page()
    for _ in range(8):
        gateway.request(0.4, 0.02, 100, 32)
    for _ in range(2):
        gateway.request(1.9, 0.09, 1000, 32, path="remote")
    found = seen([Reading(before, gateway.page(), 5.0)], [])
    assert found.load is not None
    assert found.load.arrivals_per_s == pytest.approx(2)
    assert found.load.prompt_tokens == pytest.approx(280)
    assert found.load.output_tokens == pytest.approx(32)
    assert [answers for _, *answers in found.load.answers] == [[8, 8 * 32], [2, 2 * 32]]
    assert [prompt for prompt, *_ in found.load.answers] == [prompt for prompt, _ in found.load.prompt_length_shares]
    assert sum(share for _, share in found.load.prompt_length_shares) == pytest.approx(1)
    assert found.service is not None
    assert found.service.ttft_attainment == pytest.approx(0.8)
    assert found.service.tpot_attainment == pytest.approx(0.8)
    assert found.service.attainment == pytest.approx(0.8)
    assert found.age_s == found.gateways_age_s == 1
    assert found.workers_age_s is None, "there is none"


@pytest.mark.parametrize("streamed", [1.0, 0.3, 0.0])
def test_what_clients_got_is_counted_and_not_interpolated_whether_they_stream_or_not(streamed: float) -> None:
    """P-D1: of 100 answers with 21.5 to 24.5 ms per token all are within 25 ms; half of the bucket 20 to 30 is not."""
    tight = Objectives(ttft_ms=1400, tpot_ms=25)
    gateway = Gateway(tight)
    before = gateway.page()
    for number in range(100):
        share = number / 100
        gateway.request(1.3, 0.0215 + 0.003 * share, 2000, 500, streamed=share < streamed)
    reading = Reading(before, gateway.page(), 5.0)
    found = seen([reading], [], tight).service
    assert found is not None
    assert (found.ttft_attainment, found.tpot_attainment, found.attainment) == (1.0, 1.0, 1.0)


def test_an_answer_without_a_second_token_has_no_tpot_and_can_be_within_both() -> None:
    gateway = Gateway()
    before = gateway.page()
    gateway.request(0.5, 0.0, 100, 1)
    gateway.request(0.5, 0.09, 100, 20)
    gateway.request(1.5, 0.01, 100, 20)
    found = seen([Reading(before, gateway.page(), 5.0)], []).service
    assert found is not None
    assert found.ttft_attainment == pytest.approx(2 / 3)
    assert found.tpot_attainment == pytest.approx(1 / 2)
    assert found.attainment == pytest.approx(1 / 3)


def test_each_prompt_has_its_own_ttft_objective() -> None:
    grows = Objectives(ttft_ms=100, tpot_ms=50, ttft_ms_per_prompt_token=1.0)
    gateway = Gateway(grows)
    before = gateway.page()
    gateway.request(2.0, 0.01, 2000, 20)
    gateway.request(0.2, 0.01, 50, 20)
    found = seen([Reading(before, gateway.page(), 5.0)], [], grows).service
    assert found is not None
    assert found.ttft_attainment == pytest.approx(0.5), "the mean prompt would be given 1.1 s"


def test_failed_requests_are_not_within_both_and_say_nothing_of_tpot() -> None:
    gateway = Gateway()
    before = gateway.page()
    gateway.request(0.5, 0.01, 100, 20)
    gateway.metrics.ended(TtftVerdict.MISSED, TpotVerdict.FAILED)
    gateway.metrics.ended(TtftVerdict.UNKNOWN, TpotVerdict.UNKNOWN)
    found = seen([Reading(before, gateway.page(), 5.0)], []).service
    assert found is not None
    assert found.tpot_attainment == 1.0
    assert found.attainment == pytest.approx(1 / 1.5), "one of two whole answers is known, so the failure counts half"


@pytest.mark.parametrize(("whole", "attainment"), [(10, None), (0, 0.0)])
def test_failures_alone_say_nothing_of_answers_of_which_nobody_knows_when_they_began(
    whole: int, attainment: float | None
) -> None:
    """Workers of the version before do not report it: three failures are not all that clients got."""
    gateway = Gateway()
    before = gateway.page()
    for _ in range(whole):
        gateway.metrics.ended(TtftVerdict.UNKNOWN, TpotVerdict.UNKNOWN)
    for _ in range(3):
        gateway.metrics.ended(TtftVerdict.MISSED, TpotVerdict.FAILED)
    found = seen([Reading(before, gateway.page(), 5.0)], []).service
    assert found is not None
    assert found.attainment == attainment


def test_several_gateways_are_one_sum() -> None:
    first, second = Gateway(), Gateway()
    before = [first.page(), second.page()]
    for _ in range(9):
        first.request(0.5, 0.01, 100, 20)
    second.request(1.5, 0.01, 100, 20)
    pages = zip(before, (first.page(), second.page()), strict=True)
    found = seen([Reading(*pair, 5.0) for pair in pages], []).service
    assert found is not None
    assert found.attainment == found.ttft_attainment == pytest.approx(0.9)


def test_a_window_in_which_the_objectives_changed_says_nothing_of_them() -> None:
    gateway, other = Gateway(Objectives(ttft_ms=100, tpot_ms=50)), Gateway()
    before, beside = gateway.page(), Reading(other.page(), other.page(), 5.0)
    gateway.request(0.5, 0.01, 100, 20)
    gateway.follow(OBJECTIVES)
    changed = gateway.page()
    found = seen([Reading(before, changed, 5.0), beside], []).service
    assert found is not None
    assert found.attainment is found.ttft_attainment is None, "the request was judged by the objectives before"
    gateway.request(0.5, 0.01, 100, 20)
    found = seen([Reading(changed, gateway.page(), 5.0), beside], []).service
    assert found is not None
    assert found.attainment == found.ttft_attainment == 1.0


def test_of_gateways_of_the_version_before_attainment_is_unknown_and_the_load_is_what_arrived() -> None:
    old, new = Gateway(), Gateway()
    before = [old.earlier_page(), new.page()]
    for _ in range(10):
        old.request(0.5, 0.01, 100, 20)
    alone = seen([Reading(before[0], old.earlier_page(), 5.0)], [])
    assert alone.load is not None and alone.service is not None
    assert alone.load.arrivals_per_s == pytest.approx(2.0)
    assert (alone.service.ttft_attainment, alone.service.tpot_attainment, alone.service.attainment) == (None,) * 3
    for _ in range(4):
        new.request(1.5, 0.01, 100, 20)
    mixed = seen([Reading(before[0], old.earlier_page(), 5.0), Reading(before[1], new.page(), 5.0)], [])
    assert mixed.load is not None and mixed.service is not None
    assert mixed.load.arrivals_per_s == pytest.approx(2.8)
    assert mixed.service.ttft_attainment == 0.0, "of those that count"
    upgraded = seen([Reading(before[0], old.page(), 5.0)], []).service
    assert upgraded is not None
    assert upgraded.attainment is None, "its first page has no objectives"


def test_answers_of_all_gateways_are_counted_by_their_prompts_and_those_of_an_old_page_not_again() -> None:
    one, other = Gateway(), Gateway()
    before = one.page(), other.page()
    one.request(0.4, 0.02, 100, 30)
    other.request(0.4, 0.02, 100, 50)
    other.request(0.4, 0.02, 1000, 70)
    after = one.page(), other.page()
    both = [Reading(first, second, 5.0) for first, second in zip(before, after, strict=True)]

    def answers(*readings: Reading) -> list[tuple[float, float]]:
        load = seen([*readings], []).load
        assert load is not None
        return [(count, tokens) for _, count, tokens in load.answers]

    assert answers(*both) == [(2, 80), (1, 70)]
    one.metrics.finished(None, 500)
    unknown = Reading(after[0], one.page(), 5.0)
    assert unknown.observed(named.GATEWAY_OUTPUT_TOKENS.name).total == 500
    assert answers(unknown) == [], "a prompt of unknown length is no short one"
    assert answers(both[0], replace(both[1], is_old=True)) == [(1, 30)]
    strange = {(("prompt_tokens", "many"), ("service", "chat")): 9.0, (("service", "chat"),): 9.0}
    added = {name: {**after[0][name], **strange} for name in (named.GATEWAY_ANSWERS.name,)}
    assert answers(Reading(before[0], {**after[0], **added}, 5.0)) == [(1, 30)], "labels of somebody else"


def test_refused_requests_are_no_load() -> None:
    """P-D10: neither those that are refused at once, nor those that the engine or the full queue refuse."""
    gateway = Gateway()
    before = gateway.page()
    for _ in range(250):
        gateway.metrics.arrived("completions")  # a wrong model, or a body that cannot be parsed
    for _ in range(10):
        gateway.request(0.5, 0.01, 100, 20)
    for _ in range(40):
        gateway.metrics.arrived("completions")
        gateway.metrics.accepted.inc()
        gateway.metrics.accepted_refused.inc()
        gateway.metrics.prompt_tokens.observe(30_000)
        gateway.metrics.refused_prompt_tokens.observe(30_000)
    load = seen([Reading(before, gateway.page(), 5.0)], []).load
    assert load is not None
    assert load.arrivals_per_s == pytest.approx(2.0)
    assert load.prompt_tokens == pytest.approx(100.0)
    assert [share for _, share in load.prompt_length_shares] == [1.0]
    late = gateway.page()
    gateway.metrics.accepted_refused.inc()
    load = seen([Reading(late, gateway.page(), 5.0)], []).load
    assert load is not None
    assert load.arrivals_per_s == 0.0, "refused in a later window than it was accepted in"


class Images:
    """What a gateway and an encode worker count of images, by their own code."""

    def __init__(self) -> None:
        self.gateway = GatewayMetrics("chat")
        self._worker_registry = CollectorRegistry()
        self._worker = WorkerMetrics(self._worker_registry)

    def request(self, images: int, path: ImagePath = ImagePath.ENCODE, seconds: float = 0.1) -> None:
        self.gateway.to_encode(images)
        for _ in range(images):
            self.gateway.image_went(path, "x")
            self._worker.encoded(seconds)

    def page(self) -> Page:
        return parse((self.gateway.expose() + generate_latest(self._worker_registry)).decode())


def encoding(
    gateway: Images, before: Page, encoders: int = 1, replicas: int | None = 1, failed: bool = False
) -> Observation:
    """``gateway``'s page is that of the first encode worker, too."""
    reading = Reading(before, gateway.page(), 5.0)
    own = replace(reading, is_old=failed)
    return observation(
        at_s=100, age_s=1, gateways=[reading], workers=[], routing=ROUTING, objectives=OBJECTIVES,
        plan_in_progress=False, encode_replicas=replicas,
        encoders=[
            Seen(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE), own if n == 0 else None, failed)
            for n in range(encoders)
        ],
    )  # fmt: skip


def test_what_comes_for_encode_workers_is_read_from_gateways_and_their_time_from_themselves() -> None:
    gateway = Images()
    gateway.request(100, seconds=50.0)  # before: it must not count
    before = gateway.page()
    for images in (1, 3):
        gateway.request(images)
    gateway.request(2, path=ImagePath.LOCAL)  # wanted too: no encode worker did it
    gateway.gateway.encode_in_flight.set(5)
    found = encoding(gateway, before, encoders=2).encode
    assert found is not None
    assert found.requests_per_s == pytest.approx(3 / 5)
    assert found.images == pytest.approx(2)
    assert found.squared_images == pytest.approx((1 + 9 + 4) / 3)
    assert found.image_ms == pytest.approx(100)
    assert found.waiting == 3, "of five, two are being encoded"


def test_images_count_when_they_come_also_those_that_a_pool_which_is_too_small_has_not_encoded() -> None:
    gateway = Images()
    before = gateway.page()
    gateway.request(1)
    gateway.gateway.to_encode(5)
    gateway.gateway.encode_in_flight.set(5)
    found = encoding(gateway, before).encode
    assert found is not None
    assert (found.images, found.squared_images) == (3, 13)


def test_while_a_gateway_does_not_count_images_the_load_of_the_others_is_not_taken_for_all() -> None:
    """A gateway of an earlier version beside a new one, as while a service is updated."""
    gateway, earlier = Images(), Images()
    before, of_earlier = gateway.page(), earlier.page()
    gateway.request(2)
    earlier.request(2)
    name = named.GATEWAY_ENCODE_IMAGES.name
    older = {family: samples for family, samples in earlier.page().items() if family != name}
    readings = [Reading(before, gateway.page(), 5.0), Reading(of_earlier, older, 5.0)]
    found = observation(
        at_s=100, age_s=1, gateways=readings, workers=[], routing=ROUTING, objectives=OBJECTIVES,
        plan_in_progress=False, encode_replicas=1,
    )  # fmt: skip
    assert found.encode is None


def test_images_that_were_encoded_at_one_time_share_the_workers_time() -> None:
    gateway = Images()
    before = gateway.page()
    for _ in range(20):
        gateway.request(4, seconds=0.4)  # 32 s of waiting in a window of 5
    found = encoding(gateway, before).encode
    assert found is not None
    assert found.image_ms == pytest.approx(5_000 / 80)


def test_the_time_of_images_by_an_old_page_is_not_counted_again() -> None:
    gateway = Images()
    before = gateway.page()
    gateway.request(3)
    old = encoding(gateway, before, failed=True).encode
    assert old is not None
    assert (old.images, old.image_ms) == (3, None)


def test_without_an_encode_pool_or_a_gateway_that_counts_images_nothing_is_known_of_them() -> None:
    gateway = Images()
    assert encoding(gateway, gateway.page(), replicas=None).encode is None
    page = Gateway().page()
    assert seen([Reading(page, page, 5.0)], []).encode is None
    none = encoding(gateway, gateway.page()).encode
    assert none is not None
    assert (none.requests_per_s, none.images, none.image_ms) == (0, None, None)
    assert encoding(gateway, gateway.page(), failed=True).encode_workers[0].condition is WorkerCondition.UNREACHABLE


def test_without_requests_attainment_is_unknown() -> None:
    page = Gateway().page()
    found = seen([Reading(page, page, 5.0)], [])
    assert found.service is not None
    assert found.service.ttft_attainment is None
    assert found.load is not None
    assert found.load.prompt_tokens is None


@pytest.mark.parametrize("gateways", [[], [Reading({}, None, 0.0)]])
def test_a_gateway_that_was_not_read_makes_the_whole_observation_old(gateways: list[Reading]) -> None:
    assert seen(gateways, []).age_s == float("inf")


def test_with_half_the_workers_unreachable_nothing_is_known() -> None:
    page = Gateway().page()
    workers = [Seen(worker("a"), None, scrape_failed=True), Seen(worker("b"), None), Seen(worker("c"), None)]
    one = seen([Reading(page, page, 5.0)], workers)
    assert one.age_s == 1
    assert one.workers[0].condition is WorkerCondition.UNREACHABLE
    workers[1] = Seen(worker("b"), None, scrape_failed=True)
    assert seen([Reading(page, page, 5.0)], workers).age_s == float("inf")


def test_engine_measurements_are_read_from_real_vllm_pages() -> None:
    """Captured from vLLM 0.32.0 after 48 prefill-then-decode requests over NIXL."""
    page = Gateway().page()
    prefill, decode = (parse((CAPTURES / f"vllm_metrics_{role}.txt").read_text()) for role in ("prefill", "decode"))
    found = seen(
        [Reading(page, page, 5.0)],
        [
            Seen(worker("p", Role.PREFILL), Reading({}, prefill, 5.0)),
            Seen(worker("d"), Reading({}, decode, 5.0)),
        ],
    )
    by_role = {sample.role: sample for sample in found.samples}
    assert (by_role[Role.PREFILL].tokens or 0) > 100
    assert 0 < by_role[Role.PREFILL].observed_ms < 60_000
    assert 0 < by_role[Role.DECODE].observed_ms < 10_000
    assert by_role[Role.DECODE].batch == pytest.approx(2149 / 534), "tokens of all its steps, none runs any more"
    assert found.kv_capacity_tokens is not None
    assert found.kv_capacity_tokens > 0


def test_the_batch_of_a_mean_step_is_the_mean_batch_of_the_same_window() -> None:
    """P-D15: thirty sequences decoded for most of the window and ended; none is left at its end."""

    def page(tokens: float, seconds: float, steps: float, running: float, usage: float) -> Page:
        return {
            "vllm:inter_token_latency_seconds_bucket": {(("le", "+Inf"),): tokens},
            "vllm:inter_token_latency_seconds_sum": {(): seconds},
            "vllm:iteration_tokens_total_count": {(): steps},
            "vllm:num_requests_running": {(): running},
            "vllm:kv_cache_usage_perc": {(): usage},
            "vllm:cache_config_info": {(("block_size", "16"), ("num_gpu_blocks", "1000")): 1.0},
        }

    before, after = page(0, 0, 0, 30, 0.6), page(30 * 80, 30 * 80 * 0.03, 80, 0, 0.0)
    (sample,) = seen([], [Seen(worker(), Reading(before, after, 2.5))]).samples
    assert sample.observed_ms == pytest.approx(30)
    assert sample.batch == pytest.approx(30)
    assert sample.tokens == pytest.approx(0.3 * 16_000)
    silent = {name: samples for name, samples in after.items() if name != "vllm:iteration_tokens_total_count"}
    (sample,) = seen([], [Seen(worker(), Reading(before, silent, 2.5))]).samples
    assert sample.batch == 1, "an engine that does not count its steps: what runs at the end"


def test_prompts_that_were_prefilled_together_count_as_one_after_the_other() -> None:
    prefill = parse((CAPTURES / "vllm_metrics_prefill.txt").read_text())
    took_s = sum(prefill["vllm:request_prefill_time_seconds_sum"].values())

    def sample_ms(seconds: float) -> float:
        workers = [Seen(worker("p", Role.PREFILL), Reading({}, prefill, seconds))]
        return seen([Reading({}, Gateway().page(), seconds)], workers).samples[0].observed_ms

    idle = sample_ms(10 * took_s)
    assert sample_ms(took_s) == pytest.approx(idle), "one at a time: each took what it took"
    assert sample_ms(took_s / 4) == pytest.approx(idle / 4), "four at a time: each kept the engine for a quarter"


def test_a_measured_prefill_is_a_pass_with_all_its_prompts_where_the_worker_tells_its_engines_time() -> None:
    """The captured prompts again, in a window in which the engine was mostly idle: 48 of them in 14 steps."""
    prefill = parse((CAPTURES / "vllm_metrics_prefill.txt").read_text())
    took_s = sum(prefill["vllm:request_prefill_time_seconds_sum"].values())
    count = sum(prefill["vllm:request_prefill_time_seconds_count"].values())
    steps = sum(prefill["vllm:iteration_tokens_total_count"].values())
    tokens = sum(prefill["vllm:request_prefill_kv_computed_tokens_sum"].values())
    assert (count, steps) == (48, 14)
    told: Page = {
        **prefill,
        f"{named.WORKER_PREFILL_SECONDS.name}_bucket": {(("le", "+Inf"),): count},
        named.WORKER_PREFILL_ENGINE_SECONDS.name: {(): took_s / 4},
    }

    def measured(page: Page) -> EngineSample:
        workers = [Seen(worker("p", Role.PREFILL), Reading({}, page, 10 * took_s))]
        return seen([Reading({}, Gateway().page(), 10 * took_s)], workers).samples[0]

    sample = measured(told)
    assert sample.observed_ms == pytest.approx(took_s / 4 / steps * 1000)
    assert sample.tokens == pytest.approx(tokens / steps)
    assert sample.batch == pytest.approx(count / steps)
    # A prompt that is longer than a pass takes several steps; then it is measured as one pass. So it is where an
    # engine does not count its steps.
    counted = "vllm:iteration_tokens_total_count"
    silent: Page = {name: samples for name, samples in told.items() if name != counted}
    slow: Page = {**silent, counted: {(): 3.0 * count}}
    for page in (slow, silent):
        sample = measured(page)
        assert sample.observed_ms == pytest.approx(took_s / 4 / count * 1000)
        assert sample.tokens == pytest.approx(tokens / count)
        assert sample.batch == 1


def test_a_prompt_whose_kv_was_pulled_teaches_nothing_about_prefill() -> None:
    """vLLM counts its tokens as computed, in the milliseconds of the transfer: a hundred times too fast."""
    page = parse((CAPTURES / "vllm_metrics_decode.txt").read_text())
    pulled = "vllm:prompt_tokens_by_source_total"
    assert any(("source", "external_kv_transfer") in labels and n > 0 for labels, n in page[pulled].items())
    workers = [Seen(worker("d"), Reading({}, page, 5.0))]
    assert Role.PREFILL not in {s.role for s in seen([Reading({}, Gateway().page(), 5.0)], workers).samples}
    local = {**page, pulled: dict.fromkeys(page[pulled], 0.0)}
    workers = [Seen(worker("d"), Reading({}, local, 5.0))]
    assert Role.PREFILL in {s.role for s in seen([Reading({}, Gateway().page(), 5.0)], workers).samples}


def test_a_request_waits_for_prefill_in_the_queue_or_in_the_engine_of_a_prefill_worker() -> None:
    def page(queued: int, waiting: int) -> Page:
        return {named.WORKER_QUEUE_DEPTH.name: {(): queued}, "vllm:num_requests_waiting": {(): waiting}}

    workers = [
        Seen(worker("p", Role.PREFILL), Reading({}, page(2, 5), 5.0)),
        Seen(worker("d"), Reading({}, page(2, 3), 5.0)),  # these wait for decode
    ]
    gateway = [Reading({}, Gateway().page(), 5.0)]
    service = seen(gateway, workers).service
    assert service is not None
    assert service.prefill_queue_depth == 7
    unknown = seen(gateway, [Seen(worker("p", Role.PREFILL), None)]).service
    assert unknown is not None
    assert unknown.prefill_queue_depth is None


def test_what_gateways_hold_back_adds_up_and_is_unknown_where_none_says() -> None:
    def page(held: int) -> Page:
        return {**Gateway().page(), named.GATEWAY_HELD.name: {(("service", "chat"),): held}}

    two = seen([Reading({}, page(3), 5.0), Reading({}, page(4), 5.0)], [])
    assert two.service is not None
    assert two.service.held == 7
    assert two.gateways == 2
    page_of_one = {name: samples for name, samples in Gateway().page().items() if name != named.GATEWAY_HELD.name}
    silent = seen([Reading({}, page_of_one, 5.0)], []).service
    assert silent is not None
    assert silent.held is None


def test_a_prompt_longer_than_the_window_was_not_prefilled_together_with_others() -> None:
    assert prefilled_together(total_s=20.0, mean_s=20.0, window_s=2.5) == 1
    assert prefilled_together(total_s=3.0, mean_s=1.5, window_s=2.5) == 1, "the first began before the window"
    assert prefilled_together(total_s=10.0, mean_s=0.1, window_s=2.5) == 4


def test_prompts_of_one_pass_that_is_longer_than_the_window_each_cost_their_share_of_it() -> None:
    """Never less, however short the window: two prompts of 15 s together cost 7.5 s each."""
    for window_s in (1.0, 2.5, 10.0):
        assert prefilled_together(total_s=30.0, mean_s=15.0, window_s=window_s) == 2


def test_decode_workers_say_what_they_lack_of_prompts_and_prefill_workers_what_they_computed() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics.decided(PrefillReason.SHORT, prompt_tokens=9000, new_tokens=9000)  # before: it must not count
    before = parse(generate_latest(registry).decode())
    metrics.decided(PrefillReason.SHORT, prompt_tokens=5000, new_tokens=200)
    metrics.decided(PrefillReason.CACHED, prompt_tokens=4000, new_tokens=0)
    metrics.decided(PrefillReason.REMOTE, prompt_tokens=3000, new_tokens=2900)
    metrics.decided(PrefillReason.UNSUPPORTED, prompt_tokens=0, new_tokens=None)
    decode = Reading(before, parse(generate_latest(registry).decode()), 5.0)
    computed = Histogram(
        "vllm:request_prefill_kv_computed_tokens", "…", registry=(other := CollectorRegistry()), buckets=(1024, 4096)
    )
    computed.observe(2500)
    page = dict(parse(generate_latest(other).decode()))
    page |= {"vllm:prefix_cache_queries_total": {(): 3000.0}, "vllm:prefix_cache_hits_total": {(): 500.0}}
    workers = [Seen(worker("d"), decode), Seen(worker("p", Role.PREFILL), Reading({}, page, 5.0))]
    found = seen([Reading({}, Gateway().page(), 5.0)], workers).load
    assert found is not None
    assert found.uncached is not None
    shares = dict(found.uncached.length_shares)
    assert shares[0.0] == pytest.approx(1 / 4), "of the one that only the decode worker can prefill nothing is sent"
    assert sum(share for tokens, share in shares.items() if 0 < tokens <= 1) == pytest.approx(1 / 4)
    assert sum(share for tokens, share in shares.items() if 128 < tokens < 256) == pytest.approx(1 / 4)
    assert sum(share for tokens, share in shares.items() if 2048 < tokens < 4096) == pytest.approx(1 / 4)
    assert replace(found.uncached, length_shares=()) == Uncached(
        4.0, 16_000.0, 3_100.0, (), 1.0, 3000.0, 2500.0, only_local=(("unsupported", 0.25),)
    )
    assert found.pulled_tokens is None, "its engine does not say what it pulled"


def test_prompts_that_no_prefill_worker_can_take_are_none_that_a_prefill_pool_is_sized_for() -> None:
    def found(remote: int, media: int) -> Uncached:
        metrics = WorkerMetrics(registry := CollectorRegistry())
        for _ in range(remote):
            metrics.decided(PrefillReason.REMOTE, prompt_tokens=3000, new_tokens=3000)
        for _ in range(media):
            metrics.decided(PrefillReason.MEDIA, prompt_tokens=0, new_tokens=None)
        metrics.decided(PrefillReason.INVALID, prompt_tokens=0, new_tokens=None)  # refused: no load at all
        decode = Seen(worker("d"), Reading({}, parse(generate_latest(registry).decode()), 5.0))
        load = seen([Reading({}, Gateway().page(), 5.0)], [decode]).load
        assert load is not None
        assert load.uncached is not None
        return load.uncached

    mixed = found(remote=3, media=1)
    assert mixed.only_local == (("media", 0.25),)
    assert (mixed.requests, mixed.prompt_tokens, mixed.tokens) == (4, 12_000, 9_000)
    only = found(remote=0, media=5)
    assert only.only_local == (("media", 1.0),)
    assert (only.length_shares, only.tokens) == (((0.0, 1.0),), 0)
    assert found(remote=3, media=0).only_local == ()
    learnt = Prefixes().observe(Load(1.0, uncached=only), only.length_shares)
    assert learnt.matter, "else every prompt is taken to be sent"
    assert learnt.missing_share == 0


def one_that_pulls(lacked: int, says: bool) -> Seen:
    """A decode worker that pulled all it lacked, but for the last token."""
    metrics = WorkerMetrics(registry := CollectorRegistry())
    metrics.decided(PrefillReason.REMOTE, prompt_tokens=2 * lacked, new_tokens=lacked)
    page = dict(parse(generate_latest(registry).decode()))
    if says:
        page["vllm:prompt_tokens_by_source_total"] = {(("source", "external_kv_transfer"),): lacked - 1.0}
        page["vllm:nixl_xfer_time_seconds_sum"] = {(): 0.01}
    return Seen(worker(f"d-{lacked}"), Reading({}, page, 5.0))


def one_that_computes(prompts: int, asked: float, had: float, says: bool) -> Seen:
    """A prefill worker."""
    metrics = WorkerMetrics(registry := CollectorRegistry())
    computed = Histogram("vllm:request_prefill_kv_computed_tokens", "…", registry=registry)
    for _ in range(prompts):
        metrics.prefilled(PrefillOutcome.DONE, 0.1)
        computed.observe((asked - had) / prompts)
    page = dict(parse(generate_latest(registry).decode()))
    if says:
        page |= {"vllm:prefix_cache_queries_total": {(): asked}, "vllm:prefix_cache_hits_total": {(): had}}
        page["vllm:prompt_tokens_by_source_total"] = {(("source", "external_kv_transfer"),): 0.0}
        page["vllm:nixl_xfer_time_seconds_sum"] = {(): 0.0}
    return Seen(worker(f"p-{prompts}", Role.PREFILL), Reading({}, page, 5.0))


def computed_of_thousand(workers: list[Seen]) -> float:
    """What prefill workers compute of a prompt of which the decode worker lacks a thousand tokens."""
    load = seen([Reading({}, Gateway().page(), 5.0)], workers).load
    assert load is not None
    return Prefixes().observe(load, ()).computed_by_prefill(1000.0)


@pytest.mark.parametrize("decode_says", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("prefill_says", [(True, True), (True, False), (False, True)])
def test_where_only_some_engines_say_what_they_pulled_or_had_a_prompt_is_no_dearer_and_no_cheaper(
    decode_says: tuple[bool, bool], prefill_says: tuple[bool, bool]
) -> None:
    # Four prompts: the decode workers lack a thousand tokens of each in the mean, and the prefill workers as much.
    pulls = [one_that_pulls(lacked, says) for lacked, says in zip((1000, 3000), decode_says, strict=True)]
    computes = [
        one_that_computes(prompts, 1500.0 * prompts, 500.0 * prompts, says)
        for prompts, says in zip((1, 3), prefill_says, strict=True)
    ]
    assert computed_of_thousand([*pulls, *computes]) == pytest.approx(1000.0, abs=2.0)


def test_where_all_engines_say_what_they_pulled_their_sums_are_taken_as_they_are() -> None:
    workers = [one_that_pulls(1000, says=True), one_that_pulls(300, says=True), one_that_computes(2, 3000, 200, True)]
    load = seen([Reading({}, Gateway().page(), 5.0)], workers).load
    assert load is not None
    assert (load.pulled_tokens, load.pulling_s) == (999 + 299, 0.02)
    unread = seen([Reading({}, Gateway().page(), 5.0)], [replace(each, reading=None) for each in workers]).load
    assert unread is not None
    assert (unread.pulled_tokens, unread.pulling_s) == (None, None), "unknown is not zero"


def test_what_workers_computed_and_pulled_by_an_old_page_is_not_counted_again() -> None:
    """A worker that cannot be read shows the same two pages at each look until ``staleAfterSeconds`` are over."""
    fresh = [one_that_pulls(1000, says=True), one_that_computes(2, 3000, 200, says=True)]
    lost = [one_that_pulls(300, says=True), one_that_computes(3, 6000, 100, says=True)]
    lost = [replace(each, scrape_failed=True, reading=replace(each.metrics, is_old=True)) for each in lost]
    gateways = [Reading({}, Gateway().page(), 5.0)]
    load, alone = seen(gateways, [*fresh, *lost]).load, seen(gateways, fresh).load
    assert load is not None and alone is not None and alone.uncached is not None
    assert (load.uncached, load.pulled_tokens, load.pulling_s) == (alone.uncached, 999, 0.01)
    unknown = seen(gateways, lost).load
    assert unknown is not None
    assert (unknown.uncached, unknown.cached_tokens, unknown.pulled_tokens) == (None, None, None)


@pytest.mark.parametrize("silent", ["vllm:prompt_tokens_by_source_total", "vllm:nixl_xfer_time_seconds_sum"])
@pytest.mark.parametrize("condition", [WorkerCondition.ACTIVE, WorkerCondition.STARTING])
def test_of_a_mixed_fleet_is_unknown_what_was_pulled_but_an_engine_that_starts_is_no_other_one(
    silent: str, condition: WorkerCondition
) -> None:
    half = one_that_pulls(300, says=True)
    assert half.reading is not None and half.reading.page is not None
    page = {name: values for name, values in half.reading.page.items() if name != silent}
    other = replace(half, worker=replace(half.worker, condition=condition), reading=Reading({}, page, 5.0))
    load = seen([Reading({}, Gateway().page(), 5.0)], [one_that_pulls(1000, says=True), other]).load
    assert load is not None
    assert load.pulled_tokens == (999 if condition is WorkerCondition.STARTING else None)


def test_of_workers_that_do_not_say_what_they_lack_nothing_is_known() -> None:
    workers = [Seen(worker("d"), Reading({}, parse((CAPTURES / "vllm_metrics_decode.txt").read_text()), 5.0))]
    found = seen([Reading({}, Gateway().page(), 5.0)], workers).load
    assert found is not None
    assert found.uncached is None


def test_prefill_workers_say_how_much_of_the_prompts_was_cached() -> None:
    page: Page = {"vllm:prefix_cache_queries_total": {(): 4000.0}, "vllm:prefix_cache_hits_total": {(): 1000.0}}
    gateway = Gateway()
    before = gateway.page()
    gateway.request(0.1, 0.02, 400, 10)
    workers = [
        Seen(worker("p", Role.PREFILL), Reading({}, page, 5.0)),
        Seen(worker("d"), Reading({}, {**page, "vllm:prefix_cache_hits_total": {(): 4000.0}}, 5.0)),  # pulled before
    ]
    load = seen([Reading(before, gateway.page(), 5.0)], workers).load
    assert load is not None
    assert load.cached_tokens == pytest.approx(100)
    unknown = seen([Reading(before, gateway.page(), 5.0)], workers[1:]).load
    assert unknown is not None
    assert unknown.cached_tokens is None


def test_the_sequences_a_worker_runs_at_once_are_those_of_the_smallest_that_says() -> None:
    def page(most: float) -> Page:
        return {named.WORKER_MAX_SEQUENCES.name: {(): most}}

    gateway = [Reading({}, Gateway().page(), 5.0)]
    silent = Seen(worker("silent"), Reading({}, {}, 5.0))
    starting = Seen(worker("starting"), Reading({}, page(float("nan")), 5.0))
    assert seen(gateway, [silent, starting]).max_sequences is None
    said = [Seen(worker(str(most)), Reading({}, page(most), 5.0)) for most in (16, 8, 32)]
    assert seen(gateway, [silent, starting, *said]).max_sequences == 8


def test_rates_of_gateways_that_were_read_over_different_times_add_up() -> None:
    def page(requests: int) -> Page:
        gateway = Gateway()
        for _ in range(requests):
            gateway.request(0.1, 0.01, 100, 10)
        return gateway.page()

    load = seen([Reading({}, page(50), 5.0), Reading({}, page(25), 2.5)], []).load
    assert load is not None
    assert load.arrivals_per_s == pytest.approx(20.0)


def test_the_age_of_workers_is_that_of_the_oldest_page_of_those_that_serve() -> None:
    page = Gateway().page()
    read = Reading(page, page, 5.0)
    starts = replace(worker("w2"), condition=WorkerCondition.STARTING)
    pages = [Seen(worker("w0"), read, age_s=2.0), Seen(worker("w1"), read, scrape_failed=True, age_s=9.0)]
    found = seen([read], [*pages, Seen(starts, None, age_s=float("inf"))])
    assert found.workers_age_s == 9.0
    assert found.age_s == 9.0, "half of the workers could not be read since then"
    assert found.gateways_age_s == 1
