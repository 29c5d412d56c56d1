"""The model of an instance from its files, whole or one shard of it, and how much KV fits beside it."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from pointsman.workers.elastic.engine.architecture import Shape, UnsupportedModel, read_shape
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.memory import GPU_SHARE, slots_beside
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.nccl import Gpu
from pointsman.workers.elastic.engine.weights import load_weights
from pointsman.workers.elastic.instance.settings import CPU_SLOTS, InstanceSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A shard of a model. ``fits``: tokens of KV that it can keep, or was told to."""

    model: Llama
    fits: int

    def instance(self, slots: int) -> Instance:
        """With a pool of so many slots, as many on each shard."""
        model = self.model
        return Instance(model, KvPool(model.shape, slots, model.dtype, model.device))


def load(settings: InstanceSettings, shard: int = 0) -> Loaded:
    """Minutes, for large models. Raises UnsupportedModel or OSError."""
    torch.set_num_threads(settings.threads)
    width = settings.tensor_parallel
    device = device_of(settings, shard)
    dtype = getattr(torch, settings.dtype)
    folder = _folder(settings.model, settings.model_revision)
    whole = read_shape(folder)
    shape = whole.shard(width)
    model = Llama(shape, load_weights(folder, whole, dtype, device, shard, width))
    fits = settings.slots or slots_that_fit(shape, dtype, device)
    log.info("model loaded", extra={"model": settings.model, "shard": shard, "slots": fits})
    return Loaded(model, fits)


def device_of(settings: InstanceSettings, shard: int) -> torch.device:
    """Where ``shard`` of the model is."""
    return torch.device("cuda", shard) if settings.gpus else torch.device("cpu")


def gpu_of(settings: InstanceSettings, shard: int) -> Gpu | None:
    """For groups over NCCL; None: none of this shard's."""
    return Gpu.of(device_of(settings, shard)) if settings.tensor_transport == "auto" else None


def slots_that_fit(shape: Shape, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens of KV beside what is on ``device`` already. Raises UnsupportedModel if there is no room for any."""
    if device.type == "cpu":
        return CPU_SLOTS
    free, total = torch.cuda.mem_get_info(device)
    slots = slots_beside(shape, dtype.itemsize, free, total)
    if slots < 1:
        raise UnsupportedModel(
            f"the model leaves {free / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB free; "
            f"an instance needs more than {(1 - GPU_SHARE) * total / 2**30:.1f} GiB for KV and computing"
        )
    return slots


def _folder(model: str, revision: str | None) -> Path:
    """Where the files of ``model`` are; those of a hub are fetched first. Raises OSError."""
    if model.startswith("/"):
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
