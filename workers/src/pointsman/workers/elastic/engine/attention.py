"""Attention over a part of the keys, and how parts become the whole.

Softmax over all keys is a mean of the softmaxes over parts, weighted by ``exp`` of each part's log-sum-exp. So each
instance attends over the KV it holds, and whoever asked merges what comes back (FlashAttention's rule, LoongServe's
use of it).
"""

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Attended:
    """What queries found in a part of the keys: ``output`` (tokens, heads, head_size), ``weight`` (tokens, heads).

    ``weight`` is the log-sum-exp of the scores in float32; -inf where a query may see none of the keys.
    """

    output: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def nothing(cls, query: torch.Tensor) -> "Attended":
        """Of no keys at all."""
        weight = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
        return cls(torch.zeros_like(query, dtype=torch.float32), weight)

    def merge(self, other: "Attended", rows: slice | torch.Tensor) -> None:
        """Add what the queries of ``rows`` found in other keys. Outputs are kept in float32."""
        weight = self.weight[rows]
        total = torch.logaddexp(weight, other.weight)
        # Where neither part has a key, both shares are exp(-inf - -inf): nothing was found, and nothing is.
        mine = torch.nan_to_num(torch.exp(weight - total), nan=0.0)[..., None]
        theirs = torch.nan_to_num(torch.exp(other.weight - total), nan=0.0)[..., None]
        self.output[rows] = self.output[rows] * mine + other.output.float() * theirs
        self.weight[rows] = total


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Attended:
    """Attention of ``query`` (n, heads, size) over ``key`` and ``value`` (m, kv_heads, size).

    ``causal``: query ``i`` sees keys ``0..i``; n and m must be equal then. Heads share keys in groups of equal size.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    batched = [each.transpose(0, 1)[None] for each in (query, key, value)]
    if query.device.type == "cpu":
        output, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*batched, is_causal=causal)
    elif query.dtype is torch.float32:
        output, weight, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            *batched, attn_bias=None, compute_log_sumexp=True, is_causal=causal
        )
        weight = weight[:, :, : query.shape[0]]  # padded to a multiple of 32
    else:
        output, weight, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*batched, is_causal=causal)
    return Attended(output[0].transpose(0, 1), weight[0].transpose(0, 1).float())
