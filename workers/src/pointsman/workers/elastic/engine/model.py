"""What a Llama layer computes for each token alone: everything but attention."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from pointsman.workers.elastic.engine.architecture import Shape
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.memory import PIECE_TOKENS
from pointsman.workers.elastic.engine.weights import Weights


class Llama:
    """The forward in pieces, so that whoever calls it may attend over other instances in between.

    ``shape`` and ``weights``: of a shard, if the model is cut over several GPUs (Megatron's way: heads and rows of the
    MLP); what shards add to the hidden states is summed twice a layer.

    Tokens are rows: hidden states are (tokens, hidden), queries (tokens, heads, head_size), keys and values (tokens,
    kv_heads, head_size). Norms and rotations are computed in float32.
    """

    def __init__(self, shape: Shape, weights: Weights) -> None:
        self.shape = shape
        self._weights = weights
        device = weights.embedding.device
        self._frequencies = torch.tensor(shape.frequencies(), dtype=torch.float32, device=device)

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states, keys and values."""
        return self._weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._weights.embedding.device

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states of ``token_ids`` (tokens,)."""
        return self._weights.embedding[token_ids]

    def rotations(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of ``positions`` (tokens,), each (tokens, 1, head_size), the same in every layer."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        dtype = self._weights.embedding.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def attention_input(
        self, layer: int, hidden: torch.Tensor, rotations: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key (both rotated) and value of each token."""
        return _in_pieces(lambda *of: self._attention_input(layer, *of), hidden, *rotations)

    def _attention_input(
        self, layer: int, hidden: torch.Tensor, *rotations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, shape = self._weights.layers[layer], self.shape
        normed = self._norm(hidden, weights.attention_norm)
        query = functional.linear(normed, weights.query).unflatten(-1, (shape.heads, shape.head_size))
        key = functional.linear(normed, weights.key).unflatten(-1, (shape.kv_heads, shape.head_size))
        value = functional.linear(normed, weights.value).unflatten(-1, (shape.kv_heads, shape.head_size))
        return _rotated(query, rotations), _rotated(key, rotations), value

    def layer_output(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor, shards: Group) -> torch.Tensor:
        """Hidden states after the layer, from those before it and what attention gave (tokens, heads, head_size).

        Raises GroupBroken, of the ``shards``.
        """
        (after,) = _in_pieces(lambda *of: (self._layer_output(layer, of[0], of[1], shards),), hidden, attended)
        return after

    def _layer_output(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor, shards: Group) -> torch.Tensor:
        weights = self._weights.layers[layer]
        hidden = hidden + shards.sum(functional.linear(attended.flatten(-2), weights.output))
        normed = self._norm(hidden, weights.mlp_norm)
        gated = functional.silu(functional.linear(normed, weights.gate)) * functional.linear(normed, weights.up)
        return hidden + shards.sum(functional.linear(gated, weights.down))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (tokens, vocabulary) in float32 of the token that follows each."""
        return functional.linear(self._norm(hidden, self._weights.norm), self._weights.head).float()

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.shape.norm_epsilon)


def _in_pieces(work: Callable[..., tuple[torch.Tensor, ...]], *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What ``work`` makes of ``rows`` (tokens, …), computed for some tokens at a time: see `PIECE_TOKENS`."""
    if len(rows[0]) <= PIECE_TOKENS:
        return work(*rows)
    pieces = [work(*piece) for piece in zip(*(each.split(PIECE_TOKENS) for each in rows), strict=True)]
    return tuple(torch.cat(each) for each in zip(*pieces, strict=True))


def _rotated(heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> torch.Tensor:
    cosines, sines = rotations
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines
