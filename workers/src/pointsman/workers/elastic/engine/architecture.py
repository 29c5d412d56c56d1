"""The shape of a Llama model, from its ``config.json``. Other architectures are refused by name."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

SUPPORTED: Final = ("LlamaForCausalLM",)


class UnsupportedModel(ValueError):
    """The engine cannot compute this model; the message says which field says so."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """Llama 3.1's frequencies: those slower than ``original_length / low`` are divided by ``factor``, smoothly."""

    factor: float
    low: float
    high: float
    original_length: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What the forward needs to know. ``rope_divisor``: positions are divided by it (linear scaling); 1: none."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_epsilon: float
    max_length: int
    rope_theta: float
    rope_divisor: float
    rope_long: LongRope | None
    tied_embeddings: bool

    def shard(self, width: int) -> "Shape":
        """What each of ``width`` GPUs computes of every layer. Raises UnsupportedModel if it cannot be cut."""
        for field, count in (
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("intermediate_size", self.intermediate),
        ):
            if count % width:
                raise UnsupportedModel(f"{field} is {count}, which tensorParallel, {width}, does not divide")
        return replace(
            self,
            heads=self.heads // width,
            kv_heads=self.kv_heads // width,
            intermediate=self.intermediate // width,
        )

    def frequencies(self) -> list[float]:
        """Radians that each pair of a head's dimensions turns per position, ``head_size / 2`` of them."""
        base = [self.rope_theta ** (-2 * pair / self.head_size) for pair in range(self.head_size // 2)]
        return [self._scaled(each) / self.rope_divisor for each in base]

    def _scaled(self, frequency: float) -> float:
        scaling = self.rope_long
        if scaling is None:
            return frequency
        turns = scaling.original_length * frequency / (2 * math.pi)
        kept = min(max((turns - scaling.low) / (scaling.high - scaling.low), 0.0), 1.0)
        return frequency * (kept + (1 - kept) / scaling.factor)


def read_shape(folder: Path) -> Shape:
    """The shape of the model in ``folder``. Raises UnsupportedModel, or OSError where there is no config.json."""
    return shape_of(json.loads((folder / "config.json").read_text()))


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape that ``config`` (transformers' fields, of version 4 or 5) describes. Raises UnsupportedModel."""
    names = config.get("architectures") or ["none"]
    if names[0] not in SUPPORTED:
        raise UnsupportedModel(f"architectures is {names}; the elastic engine computes {', '.join(SUPPORTED)}")
    for field, only in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if config.get(field, only) != only:
            raise UnsupportedModel(f"{field} is {config[field]!r}; the elastic engine computes {only!r} only")
    if config.get("quantization_config"):
        raise UnsupportedModel("quantization_config is set; the elastic engine computes float32 and bfloat16 weights")
    heads = config["num_attention_heads"]
    theta, divisor, long_rope = _rope(config)
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        max_length=config.get("max_position_embeddings", 2048),
        rope_theta=theta,
        rope_divisor=divisor,
        rope_long=long_rope,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _rope(config: Mapping[str, Any]) -> tuple[float, float, LongRope | None]:
    """Theta, divisor and scaling; version 5 of transformers writes ``rope_parameters`` for all three."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    match parameters.get("rope_type", parameters.get("type", "default")):
        case "default":
            return theta, 1.0, None
        case "linear":
            return theta, float(parameters["factor"]), None
        case "llama3":
            return theta, 1.0, LongRope(
                float(parameters["factor"]), float(parameters["low_freq_factor"]),
                float(parameters["high_freq_factor"]), int(parameters["original_max_position_embeddings"]),
            )  # fmt: skip
        case other:
            raise UnsupportedModel(f"rope_type is {other!r}; the elastic engine computes default, linear and llama3")
