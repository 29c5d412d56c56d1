"""``pointsman profile`` refuses in a sentence what it cannot measure, before it takes minutes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from pointsman.local.addresses import free_port
from pointsman.planner.errors import ProfileError
from pointsman.planner.profile.command import main, profiled
from pointsman.planner.profile.options import Options, parse

WORKER = """\
vllm:num_requests_running{model_name="m"} RUNNING
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:request_prefill_time_seconds_sum{model_name="m"} 0.0
vllm:request_prefill_kv_computed_tokens_sum{model_name="m"} 0.0
vllm:prompt_tokens_total{model_name="m"} 0.0
vllm:inter_token_latency_seconds_sum{model_name="m"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
"""
MODELS = {"data": [{"id": "m", "max_model_len": 4096}]}


class Somebody:
    """A server that shows a page and a list of models, and answers what it is told to."""

    def __init__(self) -> None:
        self.page = WORKER.replace("RUNNING", "0")
        self.models: object = MODELS
        self.answer = web.json_response({"usage": {"completion_tokens": 16}})
        self.url = ""

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.page)

    async def listed(self, _: web.Request) -> web.Response:
        return web.json_response(self.models)

    async def complete(self, _: web.Request) -> web.Response:
        return self.answer


@pytest.fixture
async def somebody() -> AsyncIterator[Somebody]:
    made = Somebody()
    app = web.Application()
    app.router.add_get("/metrics", made.metrics)
    app.router.add_get("/v1/models", made.listed)
    app.router.add_post("/v1/completions", made.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port("127.0.0.1")
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(ProfileError) as refused:
        await profiled(Options(url, Path("table.json"), "cpu", minutes=0.1, **options))  # type: ignore[arg-type] # of Options
    return str(refused.value)


async def test_a_gateway_is_told_from_a_worker(somebody: Somebody) -> None:
    somebody.page = 'pointsman_gateway_arrivals_total{service="chat",endpoint="chat"} 3\n'
    said = await refusal(somebody.url)
    assert "is a gateway" in said
    assert "kubectl port-forward pod/NAME 8000" in said


async def test_a_page_without_the_engines_families_is_no_worker(somebody: Somebody) -> None:
    somebody.page = "http_requests_total 3\n"
    assert "does not show vllm:num_requests_running: it is no vLLM worker" in await refusal(somebody.url)
    somebody.page = "<html>hello</html>"
    assert "is no page of metrics" in await refusal(somebody.url)


async def test_nobody_at_the_address_is_said_with_the_address() -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    assert (await refusal(url)).startswith(f"{url}/metrics cannot be read")


async def test_a_model_that_is_not_served_is_said_with_those_that_are(somebody: Somebody) -> None:
    assert "--served-model is 'other'" in await refusal(somebody.url, served_model="other")
    somebody.models = {"data": []}
    assert "lists no model" in await refusal(somebody.url)


async def test_a_worker_that_refuses_clients_is_said_to_have_another_role(somebody: Somebody) -> None:
    somebody.answer = web.Response(status=503, headers={"X-Pointsman-Retry": "wrong-role"})
    assert "takes no requests of clients (wrong-role): profile a decode worker" in await refusal(somebody.url)


async def test_what_an_engine_answers_instead_of_tokens_is_shown(somebody: Somebody) -> None:
    somebody.answer = web.Response(status=400, text='{"error": "token id 300 is out of vocabulary"}')
    assert "HTTP 400" in await refusal(somebody.url)
    somebody.answer = web.json_response({"usage": {"completion_tokens": 2}})
    assert "answered a request for 16 tokens" in await refusal(somebody.url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "localhost:8000"], "'localhost:8000' is no address such as http://localhost:8000"),
        (["--minutes", "0"], "'0' is no number of minutes from 0.1 to 240"),
        (["--max-batch", "1"], "'1' is no whole number of 2 or more"),
        (["--max-prompt-tokens", "8.5"], "'8.5' is no whole number of 32 or more"),
        (["--tp", "-1"], "'-1' is no whole number of 1 or more"),
    ],
)
def test_a_wrong_option_is_said_with_what_would_be_right(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--url", "http://localhost:8000", "--out", "table.json", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_where_the_table_goes_is_looked_at_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--url", "http://127.0.0.1:1", "--out", str(tmp_path / "missing" / "table.json")])
    assert ended.value.code == 2
    assert f"--out: there is no folder {tmp_path}/missing; create it" in capsys.readouterr().err
