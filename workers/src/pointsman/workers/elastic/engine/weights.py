"""A model's weights from its safetensors files, one or several; of a shard, those that its GPU computes with."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from pointsman.workers.elastic.engine.architecture import Shape, UnsupportedModel

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, as ``x @ w.T`` takes them: (outputs, inputs)."""

    attention_norm: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a shard, of one type on one device. Embedding, norms and head are whole on each."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


def load_weights(
    folder: Path, shape: Shape, dtype: torch.dtype, device: torch.device, shard: int = 0, width: int = 1
) -> Weights:
    """The weights in ``folder`` of shard ``shard`` of ``width``; ``shape`` is that of the whole model.

    Of projections from the hidden state a shard has its share of the outputs, of those back into it that of the inputs.
    Raises UnsupportedModel where one that ``shape`` needs is missing.
    """
    files = _files(folder)
    opened = {file: safe_open(folder / file, framework="pt", device=str(device)) for file in set(files.values())}

    def weight(name: str, cut: int | None = None) -> torch.Tensor:
        if name not in files:
            raise UnsupportedModel(f"{folder} has no weight {name}")
        found = opened[files[name]].get_slice(name)  # type: ignore[no-untyped-call]
        if cut is None:
            whole: torch.Tensor = found[:]
            return whole.to(dtype)
        share = found.get_shape()[cut] // width
        mine = slice(shard * share, (shard + 1) * share)
        part: torch.Tensor = found[mine] if cut == 0 else found[:, mine]
        return part.to(dtype).contiguous()

    def outputs(name: str) -> torch.Tensor:
        return weight(name, 0)

    def inputs(name: str) -> torch.Tensor:
        return weight(name, 1)

    def layer(number: int) -> Layer:
        at = f"model.layers.{number}."
        return Layer(
            attention_norm=weight(at + "input_layernorm.weight"),
            query=outputs(at + "self_attn.q_proj.weight"),
            key=outputs(at + "self_attn.k_proj.weight"),
            value=outputs(at + "self_attn.v_proj.weight"),
            output=inputs(at + "self_attn.o_proj.weight"),
            mlp_norm=weight(at + "post_attention_layernorm.weight"),
            gate=outputs(at + "mlp.gate_proj.weight"),
            up=outputs(at + "mlp.up_proj.weight"),
            down=inputs(at + "mlp.down_proj.weight"),
        )

    embedding = weight("model.embed_tokens.weight")
    return Weights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(shape.layers)),
        norm=weight("model.norm.weight"),
        head=embedding if shape.tied_embeddings else weight("lm_head.weight"),
    )


def _files(folder: Path) -> dict[str, str]:
    """Which file holds each weight."""
    if (folder / INDEX).exists():
        found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
        return found
    name = "model.safetensors"
    if not (folder / name).exists():
        raise UnsupportedModel(f"{folder} has neither {name} nor {INDEX}")
    with safe_open(folder / name, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), name)
