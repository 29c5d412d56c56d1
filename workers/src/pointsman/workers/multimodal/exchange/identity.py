"""Which model an engine has, as far as embeddings of images depend on it."""

import hashlib
import json
from typing import Final

import vllm
from vllm.config import ModelConfig

_ELSEWHERE: Final = ("_name_or_path", "text_config", "transformers_version")
"""Of the model's configuration: where it lies, what no encoder reads, what wrote it."""


def model_identity(model: ModelConfig) -> str:
    """SHA-256 in hex. Two engines with the same identity compute the same embedding of an image, up to rounding.

    It is of the weights (name or path, and commit or revision), the code (vLLM's version, the revision of the model's
    own code), the configuration after overrides, the precision, and how an image becomes the encoder's input. Weights
    that were replaced in the same folder are not noticed.
    """
    config = model.hf_config.to_dict()
    images = model.multimodal_config
    content = [
        model.model_weights or model.model,
        getattr(model.hf_config, "_commit_hash", None) or model.revision,
        model.code_revision,
        vllm.__version__,
        {name: value for name, value in config.items() if name not in _ELSEWHERE},
        str(model.dtype),
        model.quantization,
        model.quantization_config,
        None if images is None else [images.mm_processor_kwargs or {}, images.media_io_kwargs or {}],
        None if images is None else images.mm_encoder_attn_dtype,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
