"""The manager as vLLM's engine core: its API server renders, checks and answers; what is computed comes from here.

vLLM's front asks its engine core for little: to add a request, to abort one, and for tokens. So chat templates, tool
and reasoning parsers, stop strings, log-probabilities and metrics are vLLM's own.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import numpy as np
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import LogprobsLists

from pointsman.api.protocol.elastic import ElasticObjectives, ElasticState
from pointsman.serving.elastic.iterations import Sampled, Sampling
from pointsman.serving.elastic.requests import Refused, SubmittedRequest, Token
from pointsman.serving.elastic.types import Settings
from pointsman.workers.elastic.manager import supported
from pointsman.workers.elastic.manager.discovery import follow_file, follow_presence
from pointsman.workers.elastic.manager.links import Links
from pointsman.workers.elastic.manager.metrics import ManagerMetrics
from pointsman.workers.elastic.manager.rounds import Events, Rounds
from pointsman.workers.elastic.manager.settings import ManagerSettings
from pointsman.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

_FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def install(settings: ManagerSettings, worker: WorkerSettings) -> None:
    """Have vLLM's API server use an elastic group in place of an engine core of its own."""

    def make(vllm_config: Any, *_: Any, **__: Any) -> ElasticCore:
        return ElasticCore(vllm_config, settings, worker)

    EngineCoreClient.make_async_mp_client = staticmethod(make)
    supported.install()


class ElasticCore(EngineCoreClient):  # type: ignore[misc]  # vLLM is in the engine environment only
    """One elastic group behind vLLM's front. Made in a running event loop."""

    def __init__(self, vllm_config: Any, settings: ManagerSettings, worker: WorkerSettings) -> None:
        self.vllm_config = vllm_config
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False)
        self._settings = settings
        self._worker = worker
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()
        bounds = Settings(max_prefill_s=settings.max_prefill_seconds, min_degree=settings.min_degree)
        longest = vllm_config.model_config.max_model_len
        kept = Path(settings.latency_model_file) if settings.latency_model_file else None
        self._rounds = Rounds(bounds, settings.max_degree, longest, self._tell, ManagerMetrics(), kept)
        self._work = asyncio.get_running_loop().create_task(self._run(), name="elastic manager")

    async def _run(self) -> None:
        try:
            async with aiohttp.ClientSession() as session:
                links = Links(session, self._settings.control_token.get_secret_value(), self._rounds)
                looking = asyncio.create_task(self._look(links), name="discovery")
                try:
                    await self._rounds.run(links)
                finally:
                    looking.cancel()
                    await links.close()
        except Exception as error:
            # A defect; without rounds nothing is answered any more, so the process must be started again.
            log.exception("the manager ends because of an internal error")
            self.resources.engine_dead = True
            self._outputs.put_nowait(error)

    async def _look(self, links: Links) -> None:
        if self._settings.instances_file is not None:
            await follow_file(Path(self._settings.instances_file), links)
        else:
            await follow_presence(self._worker, links)

    def state(self) -> ElasticState:
        """The group at this moment, for the operator."""
        return self._rounds.state()

    def aim_at(self, objectives: ElasticObjectives | None) -> None:
        """The policy's objectives, as the operator says them."""
        self._rounds.aim_at(objectives)

    # --- what vLLM's front asks for ---

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """See EngineCoreClient."""
        return ("generate",)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """See EngineCoreClient. Raises VLLMValidationError for what is no text."""
        params = request.sampling_params
        if params is None or request.prompt_token_ids is None or request.mm_features or request.lora_request:
            raise VLLMValidationError("an elastic group answers texts with texts, without adapters")
        self._rounds.add(
            SubmittedRequest(
                request.request_id,
                tuple(request.prompt_token_ids),
                params.max_tokens or 1,
                time.monotonic(),
                sampling_of(params, self.vllm_config.model_config.get_vocab_size()),
                None if params.ignore_eos else params.eos_token_id,
                frozenset(params.stop_token_ids or ()),
            )
        )

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """See EngineCoreClient."""
        for request_id in request_ids:
            self._rounds.abort(request_id)

    async def get_output_async(self) -> EngineCoreOutputs:
        """See EngineCoreClient."""
        outputs = await self._outputs.get()
        if isinstance(outputs, Exception):
            raise EngineDeadError from outputs
        return outputs

    async def reset_mm_cache_async(self) -> None:
        """See EngineCoreClient; there are no media."""

    async def reset_prefix_cache_async(self, *_: Any, **__: Any) -> bool:
        """See EngineCoreClient; there is no prefix cache."""
        return True

    async def reset_encoder_cache_async(self) -> None:
        """See EngineCoreClient; there are no media."""

    def dp_engines_running(self) -> bool:
        """See EngineCoreClient."""
        return False

    def shutdown(self, timeout: float | None = None) -> None:
        """See EngineCoreClient."""
        self._work.cancel()

    def _tell(self, events: Events) -> None:
        running, waiting, used = self._rounds.load()
        stats = SchedulerStats(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=used)
        self._outputs.put_nowait(EngineCoreOutputs(outputs=[_output(each) for each in events], scheduler_stats=stats))


def sampling_of(params: SamplingParams, vocabulary: int) -> Sampling:
    """What the instance that computes a token needs to know. ``vocabulary``: tokens, of which -1 logprobs are all."""
    return Sampling(
        params.temperature,
        params.top_p,
        max(params.top_k, 0),
        random.getrandbits(40) if params.seed is None else params.seed,
        vocabulary if params.logprobs == -1 else params.logprobs,
    )


def _output(event: Token | Refused) -> EngineCoreOutput:
    if isinstance(event, Refused):
        return EngineCoreOutput(event.request, [], finish_reason=FinishReason.ERROR, stop_reason=event.why)
    return EngineCoreOutput(
        event.request,
        [event.sampled.token_id],
        new_logprobs=_logprobs(event.sampled),
        finish_reason=None if event.finish is None else _FINISH[event.finish],
        stop_reason=event.stopped_by,
    )


def _logprobs(sampled: Sampled) -> LogprobsLists | None:
    """As vLLM has them: the chosen token first, then the likeliest."""
    if sampled.logprob is None:
        return None
    listed: Sequence[tuple[int, float]] = [(sampled.token_id, sampled.logprob), *sampled.likeliest]
    return LogprobsLists(
        np.array([[token for token, _ in listed]], dtype=np.int32),
        np.array([[logprob for _, logprob in listed]], dtype=np.float32),
        np.array([sampled.rank], dtype=np.int32),
    )
