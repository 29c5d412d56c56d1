"""Prints the identity of a model under several flags, as JSON by name. For an engine's Python; argument: the model."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from vllm.engine.arg_utils import EngineArgs

from pointsman.workers.multimodal.exchange.identity import model_identity

FLAGS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "of an encode worker": {"mm_encoder_only": True, "max_model_len": 512, "enforce_eager": True},
    "longer context": {"hf_overrides": {"text_config": {"max_position_embeddings": 16384}}},
    "revision": {"revision": "another"},
    "code revision": {"code_revision": "another"},
    "dtype": {"dtype": "bfloat16"},
    "processor": {"mm_processor_kwargs": {"do_normalize": False}},
    "decoding": {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
    "encoder": {"hf_overrides": {"vision_feature_layer": -1}},
}


def identity(model: str, flags: dict[str, Any]) -> str:
    return model_identity(EngineArgs(model=model, **{"dtype": "float32", **flags}).create_model_config())


if __name__ == "__main__":
    model = sys.argv[1]
    found = {name: identity(model, flags) for name, flags in FLAGS.items()}
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = Path(folder) / "model"
        shutil.copytree(model, elsewhere)
        found["folder"] = identity(str(elsewhere), {})
    print(json.dumps(found))
