"""vLLM's EC connector of Pointsman: embeddings go from encode workers to the engines that prefill, over ``transfer``.

vLLM makes one for the scheduler and one for each process that runs the model. An encode worker (``ec_producer``) offers
what its encoder computes and returns ``ec_transfer_params`` with where it is. Any other engine (``ec_consumer``) has
its scheduler fetch what ``ec_transfer_params`` of a request name; a request that waits is passed over in each step. The
embedding goes to the model with the step that needs it. Whatever fails, the engine encodes the image itself.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from prometheus_client import CollectorRegistry
from vllm.config import VllmConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.encoder_output_width import get_encoder_output_width
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from pointsman.workers.multimodal.exchange.fetcher import EmbeddingFetcher
from pointsman.workers.multimodal.exchange.identity import model_identity
from pointsman.workers.multimodal.exchange.metrics import ExchangeMetrics, ExchangeStats
from pointsman.workers.multimodal.exchange.publications import Outstanding, Publication
from pointsman.workers.multimodal.exchange.publisher import EmbeddingPublisher
from pointsman.workers.multimodal.exchange.references import EmbeddingReference, references
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.exported_metrics import export
from pointsman.workers.multimodal.transfer.buffers import Buffer
from pointsman.workers.multimodal.transfer.metrics import EmbeddingTransferMetrics

log = logging.getLogger(__name__)

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass
class ExchangeMetadata(ECConnectorMetadata):  # type: ignore[misc]  # vLLM is not typed here
    """From the scheduler to the model, for one step: what to publish and what to load."""

    publications: Sequence[Publication] = ()
    loads: Sequence[tuple[EmbeddingReference, Buffer]] = field(default=())


class PointsmanECConnector(ECConnectorBase):  # type: ignore[misc]
    """See the module; ``role`` is the side of vLLM that it is made for."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self._settings = ExchangeSettings.read()
        self._side: _EncodeScheduler | _EncodeModel | _LanguageScheduler | _LanguageModel
        if role is ECConnectorRole.SCHEDULER:
            scheduler = _EncodeScheduler if self.is_producer else _LanguageScheduler
            self._side = scheduler(vllm_config, self._settings)
        else:
            self._side = _EncodeModel(vllm_config, self._settings) if self.is_producer else _LanguageModel(vllm_config)

    # --- of the scheduler ---

    def has_cache_item(self, identifier: str) -> bool:
        """Whether the embedding of this item was fetched."""
        return isinstance(self._side, _LanguageScheduler) and self._side.fetcher.is_ready(identifier)

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        """Whether the request need not wait for an embedding; begins to fetch what it needs."""
        if not isinstance(self._side, _LanguageScheduler):
            return True
        return self._side.admit(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        """The encoder cache has room for an item, which is loaded or encoded in this step."""
        if isinstance(self._side, _LanguageScheduler):
            self._side.allocated(request.mm_features[index].identifier)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ExchangeMetadata:
        """What this step publishes or loads."""
        assert isinstance(self._side, _EncodeScheduler | _LanguageScheduler)
        return self._side.metadata(scheduler_output)

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """The request has ended; of an encode worker: where its embeddings are."""
        assert isinstance(self._side, _EncodeScheduler | _LanguageScheduler)
        return False, self._side.finished(request)

    # --- of the model ---

    def start_save_caches(self, **kwargs: Any) -> None:
        """A step of an encode worker begins; ``encoder_cache`` is filled during it."""
        if isinstance(self._side, _EncodeModel):
            self._side.begin(self._get_connector_metadata(), kwargs["encoder_cache"])

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Nothing: ``get_finished`` publishes at the end of the step, which covers items of earlier steps."""

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Put what was fetched where the model looks for it."""
        if isinstance(self._side, _LanguageModel):
            self._side.load(self._get_connector_metadata(), encoder_cache)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """A step ends: publish what it has computed. No request waits for this connector."""
        if isinstance(self._side, _EncodeModel):
            self._side.end(finished_req_ids)
        return None, None

    # --- of both ---

    def get_ec_connector_stats(self) -> ExchangeStats | None:
        """Fetches since the last call."""
        return self._side.stats() if isinstance(self._side, _LanguageScheduler) else None

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ExchangeStats:
        """Statistics as they came from the engine's process."""
        return ExchangeStats(data=data) if data else ExchangeStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ExchangeMetrics:
        """Where the server's process shows them."""
        return ExchangeMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End all transfers."""
        self._side.close()


class _EncodeScheduler:
    def __init__(self, vllm_config: VllmConfig, settings: ExchangeSettings) -> None:
        self._config = vllm_config
        self._settings = settings
        self._token = settings.control_token.get_secret_value()
        self._dtype: torch.dtype = vllm_config.model_config.dtype
        self._model = model_identity(vllm_config.model_config)

    def metadata(self, scheduler_output: SchedulerOutput) -> ExchangeMetadata:
        return ExchangeMetadata(
            publications=[
                Publication(new.req_id, feature.identifier)
                for new in scheduler_output.scheduled_new_reqs
                for feature in new.mm_features
            ]
        )

    def finished(self, request: Request) -> dict[str, Any] | None:
        found = {
            feature.identifier: EmbeddingReference(
                feature.identifier,
                self._settings.address,
                feature.identifier,
                feature.mm_position.get_num_embeds(),
                get_encoder_output_width(self._config, feature.modality) * self._dtype.itemsize,
                str(self._dtype).removeprefix("torch."),
                self._model,
            ).sealed(self._token)
            for feature in request.mm_features
        }
        return found or None

    def close(self) -> None:
        pass


class _EncodeModel:
    def __init__(self, vllm_config: VllmConfig, settings: ExchangeSettings) -> None:
        self._config = vllm_config
        self._settings = settings
        self._outstanding = Outstanding()
        self._publisher: EmbeddingPublisher | None = None  # from the first embedding on, which has a width
        self._cache: dict[str, torch.Tensor] = {}

    def begin(self, metadata: ExchangeMetadata, encoder_cache: dict[str, torch.Tensor]) -> None:
        self._outstanding.add(metadata.publications)
        self._cache = encoder_cache

    def end(self, finished_requests: set[str]) -> None:
        computed = self._outstanding.computed(self._cache.keys()) if len(self._outstanding) else []
        if get_tp_group().is_first_rank:  # each rank has the whole embedding
            for item in computed:
                self._publish(item, self._cache[item])
        self._outstanding.finished(finished_requests)

    def _publish(self, item: str, embedding: torch.Tensor) -> None:
        vectors = embedding.detach().to("cpu").contiguous()
        if vectors.untyped_storage().nbytes() != vectors.nbytes:
            vectors = vectors.clone()  # else it would keep the embeddings of a whole batch
        if self._publisher is None:
            width = vectors.shape[-1] * vectors.element_size()
            registry = CollectorRegistry()
            metrics = EmbeddingTransferMetrics("encode", registry)
            self._publisher = EmbeddingPublisher(self._settings, width, _max_item_tokens(self._config), metrics)
            export(registry, "embeddings")  # this process serves no /metrics
            log.info("embeddings served", extra={"address": self._settings.address})
        self._publisher.publish(item, vectors.shape[0], memoryview(vectors.view(torch.uint8).numpy()).cast("B"))

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()


class _LanguageScheduler:
    def __init__(self, vllm_config: VllmConfig, settings: ExchangeSettings) -> None:
        self._token = settings.control_token.get_secret_value()
        self._width: int = vllm_config.model_config.get_hidden_size()
        self._model = model_identity(vllm_config.model_config)
        self._warned: set[str] = set()  # other models
        self.fetcher = EmbeddingFetcher(settings, _max_item_tokens(vllm_config))
        self._references: dict[str, dict[str, EmbeddingReference]] = {}  # of the requests under way that have some
        self._in_cache: set[str] = set()  # items that the model's encoder cache has, or has after this step
        self._allocated: set[str] = set()  # in this step
        self._loads: list[tuple[EmbeddingReference, Buffer]] = []  # of this step
        self._reserved_bytes = 0  # as last shown

    def admit(self, request: Request, num_computed_tokens: int) -> bool:
        if not request.ec_transfer_params:
            return True
        known = self._references.get(request.request_id)
        if known is None:
            known = self._references[request.request_id] = self._usable(request)
        if not known:
            return True
        needed = [
            known[feature.identifier]
            for feature in request.mm_features
            if feature.identifier in known
            and feature.identifier not in self._in_cache
            and feature.mm_position.offset + feature.mm_position.length > num_computed_tokens
        ]
        return self.fetcher.admit(request.request_id, needed)

    def _usable(self, request: Request) -> dict[str, EmbeddingReference]:
        """The references of a request that fit its prompt and this model."""
        sealed = references(request.ec_transfer_params, self._token)
        usable = {}
        for feature in request.mm_features:
            reference = sealed.get(feature.identifier)
            if reference is None:
                continue
            if reference.model != self._model:
                self._refuse(reference)
                continue
            dtype = DTYPES.get(reference.dtype)
            # an encoder may emit several vectors of the language model's width for each token
            fits = dtype is not None and reference.token_bytes % (self._width * dtype.itemsize) == 0
            if fits and reference.num_tokens == feature.mm_position.get_num_embeds():
                usable[feature.identifier] = reference
            else:
                log.warning(
                    "embedding does not fit this model, the engine encodes the image",
                    extra={"embedding": str(reference)},
                )
        return usable

    def _refuse(self, reference: EmbeddingReference) -> None:
        self.fetcher.refused()
        if reference.model not in self._warned:
            self._warned.add(reference.model)
            log.warning(
                "encode worker not used, the engine encodes the images: another model or other flags of embeddings",
                extra={"address": reference.address},
            )

    def allocated(self, item: str) -> None:
        self._allocated.add(item)
        if self.fetcher.is_ready(item):
            self._loads.append(self.fetcher.take(item))

    def metadata(self, scheduler_output: SchedulerOutput) -> ExchangeMetadata:
        self._in_cache.difference_update(scheduler_output.free_encoder_mm_hashes)
        self._in_cache |= self._allocated
        loads, self._loads, self._allocated = self._loads, [], set()
        return ExchangeMetadata(loads=loads)

    def finished(self, request: Request) -> None:
        if self._references.pop(request.request_id, None):
            self.fetcher.finished(request.request_id)

    def stats(self) -> ExchangeStats | None:
        counts, seconds = self.fetcher.outcomes()
        reserved, transfers = self.fetcher.reserved_bytes, self.fetcher.transfers()
        if not counts and not transfers and reserved == self._reserved_bytes:
            return None
        self._reserved_bytes = reserved
        return ExchangeStats.of(counts, seconds, reserved, transfers)

    def close(self) -> None:
        self.fetcher.close()


class _LanguageModel:
    def __init__(self, vllm_config: VllmConfig) -> None:
        self._device = vllm_config.device_config.device_type

    def load(self, metadata: ExchangeMetadata, encoder_cache: dict[str, torch.Tensor]) -> None:
        for reference, vectors in metadata.loads:
            loaded = torch.frombuffer(vectors, dtype=DTYPES[reference.dtype]).view(reference.num_tokens, -1)
            encoder_cache[reference.item] = loaded.to(self._device, non_blocking=True)

    def close(self) -> None:
        pass


def _max_item_tokens(vllm_config: VllmConfig) -> int:
    """The longest embedding that the engine's encoder cache takes."""
    scheduler = vllm_config.scheduler_config
    return int(max(scheduler.encoder_cache_size, scheduler.max_num_encoder_input_tokens))
