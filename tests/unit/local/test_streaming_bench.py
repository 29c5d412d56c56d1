"""The streaming benchmark sends the seed benchmark's workload and reports what really happened."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from pointsman.local.streaming import result_file
from pointsman.local.streaming.client import EndpointUnusable, Run, Target, only_model, run
from pointsman.local.streaming.command import main
from pointsman.local.streaming.engine import EngineKnobs
from pointsman.local.streaming.figures import Figures, Sample, differences, figures
from pointsman.local.streaming.page import page
from pointsman.local.streaming.result_file import Result
from pointsman.local.streaming.workload import Workload

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def test_repeats_are_cycled_and_unique_prompts_end_with_their_number() -> None:
    workload = Workload(prompt="Hi", repeats=(1, 1, 3), unique=True, requests=4)
    assert workload.prompts() == ["Hi [0]", "Hi [1]", "Hi Hi Hi [2]", "Hi [3]"]
    assert Workload(prompt="Hi", repeats=(2,), requests=2).prompts() == ["Hi Hi", "Hi Hi"]


def test_figures_of_a_run_computed_by_hand() -> None:
    quick = Sample(0.0, 0.001, (0.1, 0.2, 0.4), 0.5, prompt_tokens=10, completion_tokens=3)
    slow = Sample(0.1, 0.003, (0.3, 0.4, 0.5), 0.6, prompt_tokens=20, completion_tokens=5)
    failed = Sample(0.2, 0.002, (0.01,), 0.02, error="HTTP 500")
    found = figures([quick, slow, failed], submit_wall_s=0.2, total_wall_s=0.8)
    assert (found.requests, found.failed) == (3, 1)
    assert (found.prompt_tokens, found.completion_tokens, found.throughput) == (30, 8, 10.0)
    assert (found.ttft.p50, found.ttft.p99) == pytest.approx((100, 300))
    assert (found.tpot.p50, found.tpot.p99) == pytest.approx((50, 150)), "0.2 s over 4 gaps, 0.3 s over 2"
    assert (found.itl.count, found.itl.p50, found.itl.p99) == pytest.approx((4, 100, 200))
    assert found.add_request.count == 2, "a failed request gives no latency"


def test_what_the_endpoint_did_not_count_is_unknown_and_not_zero() -> None:
    uncounted = Sample(0.0, None, (0.1,), 0.2)
    found = figures([uncounted], submit_wall_s=0.0, total_wall_s=0.2)
    assert (found.completion_tokens, found.throughput, found.tpot.p50, found.add_request.p50) == (None,) * 4


def test_a_budget_and_batch_sizes_reach_the_engine() -> None:
    knobs = EngineKnobs(max_batch_size=4, prefill_max_batch_size=32, prefill_max_tokens=224)
    assert knobs.arguments[:4] == ["--max-num-seqs", "4", "--max-num-batched-tokens", str(4 * 4096)]
    assert knobs.variables == {"POINTSMAN_BENCH_PREFILL_REQUESTS": "32", "POINTSMAN_BENCH_PREFILL_TOKENS": "224"}
    assert EngineKnobs(max_batch_size=4).variables == {"POINTSMAN_BENCH_PREFILL_REQUESTS": "4"}


@asynccontextmanager
async def endpoint(handler: Handler) -> AsyncIterator[str]:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served"}]})

    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def answer(request: web.Request, *, events: list[dict[str, object]], done: bool = True) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    if done:
        await response.write(b"data: [DONE]\n\n")
    return response


def token(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


WHOLE: list[dict[str, object]] = [
    token("a"),
    token("b", "length"),
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
]


async def measured(url: str, workload: Workload, key: str | None = None) -> Run:
    return await run(Target(url, "served", key), workload, timeout_s=20, on_end=lambda _: None)


async def test_every_request_is_submitted_without_waiting_for_the_ones_before() -> None:
    all_there, bodies = asyncio.Event(), []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        assert request.headers["Authorization"] == "Bearer the-key"
        if len(bodies) == 3:
            all_there.set()
        await all_there.wait()
        return await answer(request, events=WHOLE)

    async with endpoint(handler) as url:
        assert await only_model(url, None) == "served"
        found = await measured(url, Workload(prompt="Hi", requests=3, stop_on_eos=False, max_new_tokens=2), "the-key")
    assert [sample.error for sample in found.samples] == [None] * 3
    assert all(body["ignore_eos"] and body["max_tokens"] == 2 and body["stream"] for body in bodies)
    first = found.samples[0]
    assert first.completion_tokens == 2 and len(first.chunks_s) == 2
    assert first.accepted_s is not None and first.ended_s is not None
    assert first.accepted_s <= first.chunks_s[0] <= first.ended_s


async def test_ignore_eos_is_sent_only_when_asked_for_because_other_servers_refuse_it() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert "ignore_eos" not in await request.json()
        return await answer(request, events=WHOLE)

    async with endpoint(handler) as url:
        assert (await measured(url, Workload(prompt="Hi", requests=1))).samples[0].error is None


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([token("a")], "without a finish reason"),
        ([token("a"), {"error": {"message": "worker died"}}], "worker died"),
        ([token("a"), token("", "abort")], "without a finish reason"),
    ],
)
async def test_an_answer_that_breaks_off_counts_as_failed(events: list[dict[str, object]], why: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await answer(request, events=events)

    async with endpoint(handler) as url:
        sample = (await measured(url, Workload(prompt="Hi", requests=1))).samples[0]
    assert sample.error is not None and why in sample.error


async def test_an_endpoint_that_is_not_there_is_said_in_one_sentence() -> None:
    with pytest.raises(EndpointUnusable, match=r"cannot list the models of http://127\.0\.0\.1:9/v1"):
        await only_model("http://127.0.0.1:9/v1", None)


def result(itl_s: float) -> Result:
    chunks = tuple(0.1 + itl_s * number for number in range(20))
    samples = (Sample(0.0, 0.001, chunks, chunks[-1], 5, 20), Sample(0.02, error="HTTP 500 <b>"))
    found: Figures = figures(samples, submit_wall_s=0.02, total_wall_s=1.0)
    return Result("http://x/v1", "m<1>", {"prompt": "Hi & ho", "prefill_max_tokens": None}, found, samples)


def test_a_result_survives_its_file_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.json"
    result_file.write(result(0.01), path)
    again = result_file.read(path)
    assert again == result(0.01)
    path.write_text('{"format": "other"}')
    with pytest.raises(result_file.ResultUnreadable, match="is no result of 'pointsman bench streaming'"):
        result_file.read(path)


def test_two_runs_are_compared_by_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = result(0.04), result(0.03)
    by_name = {each.name: each for each in differences(before.figures, after.figures)}
    assert by_name["ITL p99"].ratio == pytest.approx(0.75)
    for name, one in (("before", before), ("after", after)):
        result_file.write(one, tmp_path / f"{name}.json")
    html = tmp_path / "compare.html"
    arguments = ["--compare", str(tmp_path / "before.json"), str(tmp_path / "after.json"), "--html", str(html)]
    assert main(["streaming", *arguments]) == 0
    assert "0.75" in capsys.readouterr().out
    text = html.read_text()
    assert "m&lt;1&gt;" in text and "m<1>" not in text and text.count("<svg") == 3


def test_a_page_of_a_run_in_which_everything_failed_says_so() -> None:
    nothing = (Sample(0.0, error="HTTP 500"),)
    one = Result("u", "m", {}, figures(nothing, submit_wall_s=0.0, total_wall_s=0.0), nothing)
    assert "No request was answered." in page([("run", one)])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "--prompt is missing"),
        (["--prompt", "Hi", "--num-requests", "0"], "'0' must be a whole number of at least 1"),
        (["--prompt", "Hi", "--prompt-repeats", "1,x"], "'x' must be a whole number of at least 1"),
        (["--prompt", "Hi", "--submit-interval-ms", "-1"], "must be a number of milliseconds"),
        (["--prompt", "Hi", "--url", "host:8000"], "must begin with http:// or https://"),
        (["--prompt", "Hi", "--url", "http://h/v1", "--prefill-max-tokens", "9"], "is for the local engine"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["streaming", *arguments])
    assert ended.value.code == 2 and why in capsys.readouterr().err
