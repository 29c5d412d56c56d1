"""One vLLM worker over HTTP: prompts in, its own counts and times out.

Times are the engine's, read from its ``/metrics`` before and after: they hold no network and no client. Names of its
families: vLLM's documentation, ``design/metrics``; as of 0.32.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from pointsman.api.protocol import headers
from pointsman.api.protocol import metrics as named
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.errors import ProfileError
from pointsman.planner.exposition import parse
from pointsman.planner.profile.types import WorkerFacts

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
COMPUTED: Final = "vllm:request_prefill_kv_computed_tokens"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATED: Final = "vllm:generation_tokens_total"
STEPS: Final = "vllm:inter_token_latency_seconds"
MOVED_BYTES: Final = "vllm:nixl_bytes_transferred"
MOVING_TIME: Final = "vllm:nixl_xfer_time_seconds"
_CACHE: Final = "vllm:cache_config_info"
_NEEDED: Final = (RUNNING, PREFILL_TIME + "_sum", COMPUTED + "_sum", PROMPT_TOKENS, STEPS + "_sum", _CACHE)

LOOK_TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 5.0  # until an answer's times are on the page
POLL_S: Final = 0.05
# Any tokenizer has these: bytes, or the first merges. What is measured does not depend on which they are (but with a
# mixture of experts: random tokens load the experts about evenly).
_VOCABULARY: Final = range(3, 256)
_COMPUTE_HERE: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end. ``seconds``: as the client saw it; ``remote``: another worker computed its prompt."""

    seconds: float
    remote: bool


class LiveWorker:
    """A worker at ``url``, asked for tokens. ``seed`` makes the prompts, which no other run has cached."""

    def __init__(self, url: str, *, model: str | None, seed: int) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._rng = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit of connections: a batch is as many requests as it has sequences.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, connect=LOOK_TIMEOUT_S)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    # --- what it is ---

    async def facts(self) -> WorkerFacts:
        """What it says of itself. Raises ProfileError, with what to do, for what is no worker to be profiled."""
        page = await self.page()
        if named.GATEWAY_WORKERS.name in page or named.GATEWAY_ARRIVALS.name in page:
            raise ProfileError(f"{self.url} is a gateway: its requests go to any worker; {_ONE_WORKER}")
        lacking = [name for name in _NEEDED if name not in page]
        if lacking:
            raise ProfileError(f"{self.url}/metrics does not show {lacking[0]}: it is no vLLM worker; {_ONE_WORKER}")
        listed = await self._json("/v1/models")
        served = [str(entry["id"]) for entry in listed.get("data", []) if isinstance(entry, dict) and "id" in entry]
        if not served:
            raise ProfileError(f"{self.url}/v1/models lists no model")
        model = self._model or served[0]
        if model not in served:
            raise ProfileError(f"--served-model is '{model}': {self.url} serves {', '.join(served)}")
        self._model = model
        length = next(entry.get("max_model_len") for entry in listed["data"] if entry.get("id") == model)
        cache = dict(next(iter(page[_CACHE])))
        block = _whole(cache.get("block_size"))
        blocks = _whole(cache.get("num_gpu_blocks"))
        capacity = _whole(cache.get("kv_cache_size_tokens")) or (block * blocks if block and blocks else None)
        if block is None or capacity is None or not isinstance(length, int):
            raise ProfileError(
                f"{self.url} does not report the size of its KV cache ({_CACHE}) or its context (max_model_len)"
            )
        return WorkerFacts(
            model=model,
            max_context_tokens=length,
            kv_capacity_tokens=capacity,
            block_tokens=block,
            kv_bytes_per_token=_bytes_per_token(cache, capacity),
            version=await self._version(),
        )

    async def _version(self) -> str | None:
        try:
            found = (await self._json("/version")).get("version")
        except ProfileError:
            return None
        return found if isinstance(found, str) else None

    # --- asking ---

    def prompt(self, tokens: int) -> list[int]:
        """A prompt nobody has cached, but for chance with very short ones."""
        return self._rng.choices(_VOCABULARY, k=tokens)

    async def ask(self, prompt: Sequence[int], tokens: int, *, remote: bool = False) -> Answer:
        """Answer ``prompt`` with exactly ``tokens`` tokens. ``remote``: computed by a prefill worker, if one is there.

        Raises ProfileError for an answer that is none.
        """
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        rule = {headers.MAX_LOCAL_PREFILL_TOKENS: str(0 if remote else _COMPUTE_HERE)}
        if remote:
            rule[headers.MAX_PREFILL_QUEUE_SIZE] = str(_COMPUTE_HERE)
        began_s = time.monotonic()
        try:
            async with self._open().post(f"{self.url}/v1/completions", json=body, headers=rule) as answer:
                text = await answer.text()
                took_s = time.monotonic() - began_s
                retry = answer.headers.get(headers.RETRY)
                if answer.status == 503 and retry is not None:
                    raise ProfileError(
                        f"{self.url} takes no requests of clients ({retry}): profile a decode worker that serves"
                    )
                if answer.status != 200:
                    raise ProfileError(f"{self.url} answered HTTP {answer.status}: {_sentence(text)}")
                made = _object(text).get("usage")
                if not isinstance(made, dict) or made.get("completion_tokens") != tokens:
                    raise ProfileError(f"{self.url} answered a request for {tokens} tokens with {_sentence(text)}")
                return Answer(took_s, answer.headers.get(headers.PREFILL) == "remote")
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{self.url} did not answer: {error or type(error).__name__}") from None

    # --- looking ---

    async def page(self) -> Page:
        """Its /metrics now. Raises ProfileError."""
        text = await self._text("/metrics")
        try:
            return parse(text)
        except ValueError:
            raise ProfileError(f"{self.url}/metrics is no page of metrics; {_ONE_WORKER}") from None

    async def page_after(self, before: Page, finished: int) -> Page:
        """The first page on which so many more requests have ended than on ``before``; the last one after a while."""
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            page = await self.page()
            if scrape_pair.observed(before, page, PREFILL_TIME).count >= finished or time.monotonic() > deadline_s:
                return page
            await asyncio.sleep(POLL_S)

    async def idle(self) -> bool:
        """Wait a while for what was asked and left; False: somebody else is being served."""
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            page = await self.page()
            if not (scrape_pair.gauge(page, RUNNING) or scrape_pair.gauge(page, WAITING)):
                return True
            if time.monotonic() > deadline_s:
                return False
            await asyncio.sleep(POLL_S)

    async def _json(self, path: str) -> dict[str, Any]:
        return _object(await self._text(path))

    async def _text(self, path: str) -> str:
        url = self.url + path
        try:
            async with self._open().get(url, timeout=aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)) as answer:
                if answer.status != 200:
                    raise ProfileError(f"{url} answered HTTP {answer.status}; {_ONE_WORKER}")
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{url} cannot be read: {error or type(error).__name__}") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the worker's connections are not open")
        return self._session


_ONE_WORKER: Final = (
    "give the address of one vLLM worker, e.g. http://localhost:8000 after 'kubectl port-forward pod/NAME 8000'"
)


def _bytes_per_token(cache: dict[str, str], capacity: int) -> int | None:
    """From the memory its cache was given, where it says both and the one made the other."""
    memory = _whole(cache.get("kv_cache_memory_bytes"))
    if memory is None or cache.get("num_gpu_blocks_override", "None") != "None":
        return None
    return memory // capacity


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ProfileError(f"an answer is no JSON: {_sentence(text)}") from None
    if not isinstance(found, dict):
        raise ProfileError(f"an answer is no JSON object: {_sentence(text)}")
    return found


def _sentence(text: str) -> str:
    return " ".join(text.split())[:300]
