"""Attention over a part of the keys, and how parts become the whole.

Softmax over all keys is a mean of the softmaxes over parts, weighted by ``exp`` of each part's log-sum-exp. So each
instance attends over the KV it holds, and whoever asked merges what comes back (FlashAttention's rule, LoongServe's
use of it).
"""

from collections.abc import Sequence
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

    @classmethod
    def of_rows(cls, parts: "Sequence[Attended]") -> "Attended":
        """What some queries found and what the next ones found, as one. ``parts``: at least one."""
        if len(parts) == 1:
            return cls(parts[0].output.contiguous(), parts[0].weight.contiguous())
        return cls(torch.cat([each.output for each in parts]), torch.cat([each.weight for each in parts]))

    def wide(self) -> "Attended":
        """The same with outputs in float32, as `merge` needs them."""
        return Attended(self.output.float(), self.weight)

    def merge(self, other: "Attended", rows: slice | torch.Tensor) -> None:
        """Add what the queries of ``rows`` found in other keys. Outputs are kept in float32."""
        weight = self.weight[rows]
        total = torch.logaddexp(weight, other.weight)
        # Where neither part has a key, both shares are exp(-inf - -inf): nothing was found, and nothing is.
        mine = torch.nan_to_num(torch.exp(weight - total), nan=0.0)[..., None]
        theirs = torch.nan_to_num(torch.exp(other.weight - total), nan=0.0)[..., None]
        self.output[rows] = self.output[rows] * mine + other.output.float() * theirs
        self.weight[rows] = total


class Keys:
    """The keys that each of some queries sees, one after another: of query ``i`` the next ``counts[i]`` of all.

    Made once for an iteration, because tensors that a GPU needs are copied there.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts = counts
        self.rows = [row for row, count in enumerate(counts) if count]
        self._on_device: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if device.type != "cpu" and self.rows:
            found = [count for count in counts if count]
            starts = torch.tensor([0, *found], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            each = torch.arange(len(found) + 1, dtype=torch.int32)
            self._on_device = starts.to(device), each.to(device), torch.tensor(self.rows, device=device)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Attended:
        """Attention of each query (tokens, heads, size) over its keys and values (keys, kv_heads, size)."""
        if not self.rows:
            return Attended.nothing(query)
        if self._on_device is None or query.dtype is torch.float32:
            return self._one_by_one(query, key, value)
        starts, each, rows = self._on_device
        complete = len(self.rows) == len(query)  # flash attention gives +inf to a query without keys
        output, weight, *_ = torch.ops.aten._flash_attention_forward(
            query if complete else query[rows], key, value, each, starts, 1, max(self.counts), 0.0, False, False
        )
        found = Attended(output, weight.T)
        if complete:
            return found.wide()
        attended = Attended.nothing(query)
        attended.output[rows], attended.weight[rows] = found.output.float(), found.weight
        return attended

    def _one_by_one(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Attended:
        attended, start = Attended.nothing(query), 0
        for row in self.rows:
            mine = slice(start, start + self.counts[row])
            found = attend(query[row : row + 1], key[mine], value[mine], causal=False)
            attended.output[row], attended.weight[row] = found.output[0], found.weight[0]
            start = mine.stop
        return attended


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Attended:
    """Attention of ``query`` (n, heads, size) over ``key`` and ``value`` (m, kv_heads, size).

    ``causal``: query ``i`` sees keys ``0..i``; n and m must be equal then. Heads share keys in groups of equal size.
    """
    groups = query.shape[1] // key.shape[1]
    flash = query.device.type != "cpu" and query.dtype is not torch.float32
    if groups > 1 and not flash:  # flash attention on a GPU knows groups
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    batched = [each.transpose(0, 1)[None] for each in (query, key, value)]
    if flash:
        output, weight, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*batched, is_causal=causal)
    elif query.device.type == "cpu":
        output, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*batched, is_causal=causal)
    else:
        output, weight, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            *batched, attn_bias=None, compute_log_sumexp=True, is_causal=causal
        )
        weight = weight[:, :, : query.shape[0]]  # padded to a multiple of 32
    return Attended(output[0].transpose(0, 1), weight[0].transpose(0, 1).float())
