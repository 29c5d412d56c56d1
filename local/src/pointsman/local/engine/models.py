"""Models made on the spot: small random Llamas and a LLaVA, whose answers depend on the whole context.

No download, no licence, and better than real weights for one purpose: with ordinary small random weights the output
hardly depends on the context, so equal tokens would prove nothing about a KV transfer. These weights are large
(``initializer_range``), so one changed token far back changes what follows.
"""

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pointsman.local.cache import cache_directory
from pointsman.local.engine.environment import EngineEnvironment, Report
from pointsman.local.errors import EngineEnvironmentFailed

MAKER: Final = "pointsman.local.engine.make_model"


class ModelSize(StrEnum):
    """What the model is for."""

    TINY = "tiny"  # tests: 0.9 M parameters, 2 ms a token
    VISION = "vision"  # images: the tiny one behind a vision tower, 64 tokens an image
    SMALL = "small"  # latency: 26 M parameters, a 2 000-token prompt takes half a second on one core


@dataclass(frozen=True)
class VisionRecipe:
    """Shape of a random CLIP vision tower. Sizes in pixels; an image has one token for each patch."""

    image_size: int
    patch_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    initializer_range: float


@dataclass(frozen=True)
class ModelRecipe:
    """Shape of a random Llama. ``initializer_range`` is the standard deviation of its weights."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    initializer_range: float
    max_position_embeddings: int = 8192
    seed: int = 20250325
    vision: VisionRecipe | None = None


RECIPES: Final = {
    ModelSize.TINY: ModelRecipe(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    ),
    ModelSize.VISION: ModelRecipe(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        vision=VisionRecipe(
            image_size=112,
            patch_size=14,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            initializer_range=0.3,
        ),
    ),
    ModelSize.SMALL: ModelRecipe(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        initializer_range=0.15,
    ),
}


def ensure_model(
    environment: EngineEnvironment, size: ModelSize, cache: Path | None = None, report: Report = print
) -> Path:
    """The folder of the model of this size (Hugging Face layout, float32), made now if the cache lacks it.

    Raises EngineEnvironmentFailed if it cannot be made.
    """
    recipe = RECIPES[size]
    maker = Path(__file__).with_name("make_model.py")
    key = hashlib.sha256(json.dumps(asdict(recipe)).encode() + maker.read_bytes()).hexdigest()[:16]
    folder = (cache or cache_directory()) / "models" / f"{size}-{key}"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        report(f"making the {size} model in {folder}")
        made = subprocess.run(
            [str(environment.python), "-m", MAKER, json.dumps(asdict(recipe)), str(folder)],
            env=environment.variables(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if made.returncode:
            raise EngineEnvironmentFailed(f"cannot make the {size} model: {made.stderr.strip()[-800:]}")
    return folder
