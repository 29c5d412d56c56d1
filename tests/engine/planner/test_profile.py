"""``pointsman profile`` on real engines: its table says what they do, and is used by a replay."""

import asyncio
import random
import time
from pathlib import Path

import aiohttp
import pytest

from fixtures.engine_service import Service
from fixtures.engines import MODEL
from pointsman.api.protocol import headers
from pointsman.planner.profile import command as profile
from pointsman.planner.replay import command as replay
from pointsman.planner.table_files import Table, read_table

# Both sides are measured one after the other: where the computer changes its speed between them, they are measured
# again. A table that is wrong is wrong each time.
ATTEMPTS = 3
KV_BYTES = 4 * 2 * 32 * 2 * 4  # layers, KV heads, head size, keys and values, float32
POLICY = "objectives: {ttftMs: 2000, tpotMs: 100}\nbudget: {maxGpus: 3}\n"


async def profiled(url: str, out: Path, *, minutes: float) -> Table:
    """The table of a worker, as a user makes it."""
    bounds = ["--max-prompt-tokens", "1024", "--max-batch", "4", "--minutes", str(minutes), "--gpu", "cpu"]
    began_s = time.monotonic()
    assert await asyncio.to_thread(profile.main, ["--url", url, "--out", str(out), *bounds]) == 0
    assert time.monotonic() - began_s < minutes * 60 + 15, "it keeps to its time"
    return read_table(out)


async def waits_ms(url: str, tokens: int, count: int) -> list[float]:
    """What a client waits for one token after prompts of ``tokens`` tokens that are computed by this worker."""
    rng, found = random.Random(tokens), []
    here = {headers.MAX_LOCAL_PREFILL_TOKENS: "100000"}
    async with aiohttp.ClientSession() as session:
        for _ in range(count):
            body = {"model": MODEL, "prompt": rng.choices(range(3, 94), k=tokens), "max_tokens": 1}
            began_s = time.monotonic()
            async with session.post(f"{url}/v1/completions", json=body, headers=here) as answer:
                assert answer.status == 200
                await answer.read()
            found.append((time.monotonic() - began_s) * 1000)
    return found


async def test_a_decode_worker_is_profiled_and_its_table_says_what_a_client_sees(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = service.workers["decode-0"]
    for _ in range(ATTEMPTS):
        waited = {tokens: await waits_ms(worker.url, tokens, 7) for tokens in (200, 1000)}
        table = await profiled(worker.url, tmp_path / "table.json", minutes=0.4)
        for tokens, seen in waited.items():
            seen += await waits_ms(worker.url, tokens, 7)
        said = {tokens: table.performance.prefill_ms(tokens, 0) for tokens in waited}
        # What a client waits is more than the engine takes; others on the computer make both longer at times.
        agree = all(0.25 * min(seen) < said[tokens] < max(seen) for tokens, seen in waited.items())
        if agree:
            break
    assert agree, f"the table says {said} ms; clients waited {waited} ms; so it was {ATTEMPTS} times"
    found = table.document
    assert found.kv_capacity_tokens == 32_768, "64 MiB"
    assert found.kv_bytes_per_token == pytest.approx(KV_BYTES, rel=0.01)
    assert found.kv_transfer is not None, "a prefill worker is there: transfers were seen"
    assert found.kv_transfer.bytes_per_second > 1e7
    assert table.performance.prefill_ms(1000, 0) > 2 * table.performance.prefill_ms(100, 0)
    assert table.performance.decode_step_ms(4, 4 * 1000) < 4 * table.performance.decode_step_ms(1, 1000), "a batch pays"

    (tmp_path / "policy.yaml").write_text(POLICY)
    arguments = ["--trace", "steady:rate=1,duration_s=60,prompt_tokens=600,output_tokens=30"]
    arguments += ["--policy", str(tmp_path / "policy.yaml"), "--table", str(tmp_path / "table.json")]
    assert await asyncio.to_thread(replay.main, arguments) == 0
    assert f"{MODEL} on cpu" in capsys.readouterr().out


async def test_what_is_no_single_free_worker_is_refused(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def said(url: str) -> str:
        arguments = ["--url", url, "--out", str(tmp_path / "none.json"), "--minutes", "0.2"]
        assert await asyncio.to_thread(profile.main, arguments) == 2
        assert not (tmp_path / "none.json").exists()
        return capsys.readouterr().err

    assert "is a gateway" in await said(service.openai_url)
    assert "takes no requests of clients" in await said(service.workers["prefill-0"].url)
    async with asyncio.TaskGroup() as group:
        others = group.create_task(waits_ms(service.workers["decode-0"].url, 1000, 400))
        assert "others" in await said(service.workers["decode-0"].url)
        others.cancel()
