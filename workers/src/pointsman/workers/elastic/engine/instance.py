"""One instance's part of an iteration: striped ring prefill, and decoding with several masters.

Prefill: member ``r`` of ``k`` computes the tokens ``r, r + k, r + 2k …`` of each prompt, so that all have the same
share of the causal triangle. In each layer the keys and values of these stripes travel once round the ring; whoever is
to own tokens copies them as they pass. So a group that shrinks after a prefill moves nothing.

Decode: each request has one master, which computes its token and keeps the KV of it. Members that hold KV of the
request get its query, attend over what they hold, and send the result back. So a member that joins moves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pointsman.serving.elastic.iterations import Move, Prompt, Step
from pointsman.workers.elastic.engine.attention import Attended, Keys, attend
from pointsman.workers.elastic.engine.attention_traffic import attention_bytes
from pointsman.workers.elastic.engine.exchanges import Transfer
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.memory import batches
from pointsman.workers.elastic.engine.model import Llama


@dataclass(frozen=True, slots=True)
class _Stripe:
    """Every k-th token of each prompt: how many of each, which are kept here (None: all), and in which slots."""

    counts: tuple[int, ...]
    rows: torch.Tensor | None
    slots: torch.Tensor

    @property
    def tokens(self) -> int:
        return sum(self.counts)


class _Here(NamedTuple):
    """What this member holds of some requests: ``slots`` of their tokens, and which of them belong to each."""

    slots: torch.Tensor
    keys: Keys


class Instance:
    """A model replica with its pool, or one shard of both.

    Shards of an instance are told the same; ``shards`` is the group of them. The KV heads of a shard lie on the same
    shard of other instances, which are its ``group``.
    """

    def __init__(self, model: Llama, pool: KvPool) -> None:
        self._model = model
        self.pool = pool

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def prefill(self, prompts: Sequence[Prompt], group: Group, shards: Group | None = None) -> dict[str, torch.Tensor]:
        """Compute ``prompts``. Returns logits (vocabulary,) by request, of those whose last token is computed here.

        Raises PoolFull before anything is sent, and GroupBroken.
        """
        self.pool.check_room(sum(count for each in prompts for member, count in each.owners if member == group.rank))
        found: dict[str, torch.Tensor] = {}
        for batch in batches(prompts, group.size):
            found |= self._prefill(batch, group, shards or Group.alone())
        return found

    def _prefill(self, prompts: Sequence[Prompt], group: Group, shards: Group) -> dict[str, torch.Tensor]:
        rank, size = group.rank, group.size
        stripes = self._allocate(prompts, rank, size)
        mine = [range(rank, len(prompt.token_ids), size) for prompt in prompts]
        positions = self._numbers([position for each in mine for position in each])
        token_ids = self._numbers(
            [prompt.token_ids[position] for prompt, each in zip(prompts, mine, strict=True) for position in each]
        )
        hidden = self._model.embed(token_ids)
        rotations = self._model.rotations(positions)
        for layer in range(self._model.shape.layers):
            query, key, value = self._model.attention_input(layer, hidden, rotations)
            attended = self._ring(layer, stripes, query, torch.stack((key, value)), group)
            hidden = self._model.layer_output(layer, hidden, attended.output.to(hidden.dtype), shards)
        last, end = {}, 0
        for prompt, each in zip(prompts, mine, strict=True):
            end += len(each)
            if each and each[-1] == len(prompt.token_ids) - 1:
                last[prompt.request] = end - 1
        logits = self._model.logits(hidden[self._numbers(list(last.values()))])
        return dict(zip(last, logits, strict=True))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def decode(self, steps: Sequence[Step], group: Group, shards: Group | None = None) -> dict[str, torch.Tensor]:
        """Compute one token of each request. Returns logits (vocabulary,) by request, of those mastered here.

        Raises PoolFull before anything is sent, and GroupBroken.
        """
        me = group.rank
        mine = [step for step in steps if step.master == me]
        self.pool.check_room(len(mine))
        new_slots = self._numbers(
            [slot for step in mine for slot in self.pool.allocate(step.request, (step.position,))]
        )
        peers = [peer for peer in range(group.size) if peer != me]
        rows = {peer: [row for row, step in enumerate(mine) if peer in step.holders] for peer in peers}
        asked = {peer: self._numbers(of_peer) for peer, of_peer in rows.items() if of_peer}
        steps_of = {peer: [step for step in steps if step.master == peer and me in step.holders] for peer in peers}
        asking = {peer: of_peer for peer, of_peer in steps_of.items() if of_peer}
        here = self._here(mine)
        here_of = {peer: self._here(of_peer) for peer, of_peer in asking.items()}
        hidden = self._model.embed(self._numbers([step.token_id for step in mine]))
        rotations = self._model.rotations(self._numbers([step.position for step in mine]))
        for layer in range(self._model.shape.layers):
            query, key, value = self._model.attention_input(layer, hidden, rotations)
            self.pool.store(layer, new_slots, key, value)
            attended = self._exchange(layer, query, here, asked, here_of, group)
            hidden = self._model.layer_output(layer, hidden, attended.output.to(hidden.dtype), shards or Group.alone())
        return dict(zip((step.request for step in mine), self._model.logits(hidden), strict=True))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def move(self, moves: Sequence[Move], group: Group) -> None:
        """Hand KV over, and take what is handed over here. The giver frees it when the taker says that it has it.

        Raises PoolFull before anything is sent, and GroupBroken: each giver has all then that was not acknowledged.
        """
        taking = [move for move in moves if move.target == group.rank]
        giving = [move for move in moves if move.source == group.rank]
        self.pool.check_room(sum(move.tokens for move in taking))
        sent: list[Transfer] = []
        for move in moves:  # in this order on all members: see `exchanges`
            exchange = group.exchange()
            if move.source == group.rank:
                positions, both = self.pool.last(move.request, move.tokens)
                sent += [group.send_host(positions, move.target), exchange.send(both, move.target)]
                exchange.begin()
            elif move.target == group.rank:
                positions, both = self.pool.room_for(move.tokens)
                arriving = group.receive_host(positions, move.source), exchange.receive(both, move.source)
                exchange.begin()
                self.pool.take(move.request, arriving[0].wait(), arriving[1].wait())
        if taking:
            group.synchronize()  # the giver frees what is acknowledged
        acknowledged = torch.zeros(1, dtype=torch.uint8)
        sent += [group.send_host(acknowledged, move.source) for move in taking]
        for move in giving:
            group.receive_host(torch.empty_like(acknowledged), move.target).wait()
            self.pool.release_last(move.request, move.tokens)
        for each in sent:
            each.wait()

    def moved_bytes(self, prompts: Sequence[Prompt], steps: Sequence[Step], group: Group) -> int:
        """Bytes of KV that left for other instances since the last call: what was sent that attention did not need.

        Of the iteration of these ``prompts`` and ``steps``, which is over here, and of whatever was sent before it.
        """
        needed = attention_bytes(self._model.shape, self._model.dtype.itemsize, prompts, steps, group.rank, group.size)
        return group.sent_bytes.take() - needed

    def _numbers(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._model.device)

    def _allocate(self, prompts: Sequence[Prompt], rank: int, size: int) -> list[_Stripe]:
        """Slots for what this member will own, and where each stripe has it."""
        kept: list[dict[int, int]] = []
        for prompt in prompts:
            owned = [position for member, part in prompt.owned() if member == rank for position in part]
            kept.append(dict(zip(owned, self.pool.allocate(prompt.request, owned), strict=True)))
        stripes = []
        for stripe in range(size):
            counts: list[int] = []
            rows: list[int] = []
            slots: list[int] = []
            for prompt, slot_of in zip(prompts, kept, strict=True):
                start, positions = sum(counts), range(stripe, len(prompt.token_ids), size)
                found = [(start + row, slot_of[at]) for row, at in enumerate(positions) if at in slot_of]
                rows += [row for row, _ in found]
                slots += [slot for _, slot in found]
                counts.append(len(positions))
            all_here = len(rows) == sum(counts)  # in their order
            stripes.append(_Stripe(tuple(counts), None if all_here else self._numbers(rows), self._numbers(slots)))
        return stripes

    def _ring(
        self, layer: int, stripes: Sequence[_Stripe], query: torch.Tensor, own: torch.Tensor, group: Group
    ) -> Attended:
        """Attention of the own stripe's queries over all stripes, ``own`` (2, tokens, kv_heads, size) first."""
        rank, size = group.rank, group.size
        attended: Attended | None = None
        passing = own
        for hop in range(size):
            number = (rank - hop) % size
            moving: list[Transfer] = []
            if hop < size - 1:
                before = stripes[(number - 1) % size]
                exchange = group.exchange()
                moving = [
                    exchange.send(passing, (rank + 1) % size),
                    exchange.receive(passing.new_empty((2, before.tokens, *passing.shape[2:])), (rank - 1) % size),
                ]
                exchange.begin()
            stripe = stripes[number]
            kept = passing if stripe.rows is None else passing[:, stripe.rows]
            self.pool.store(layer, stripe.slots, *kept)
            if attended is None:
                attended = self._attend_own(query, passing, stripe.counts)
                attended = attended if size == 1 else attended.wide()
            else:
                self._attend_stripe(attended, query, passing, stripes[rank].counts, stripe.counts, later=number > rank)
            if moving:
                moving[0].wait()
                passing = moving[1].wait()
        assert attended is not None
        return attended

    def _attend_own(self, query: torch.Tensor, own: torch.Tensor, counts: Sequence[int]) -> Attended:
        """Query ``i`` of a prompt sees keys ``0..i`` of its own stripe."""
        parts, start = [], 0
        for count in counts:
            if count:
                rows = slice(start, start + count)
                parts.append(attend(query[rows], own[0, rows], own[1, rows], causal=True))
            start += count
        return Attended.of_rows(parts) if parts else Attended.nothing(query)

    def _attend_stripe(
        self, attended: Attended, query: torch.Tensor, passing: torch.Tensor,
        queries: Sequence[int], keys: Sequence[int], *, later: bool,
    ) -> None:  # fmt: skip
        """Query ``i`` of a prompt sees keys ``0..i`` of a stripe, and of a ``later`` one those before ``i``."""
        query_start = key_start = 0
        for query_count, key_count in zip(queries, keys, strict=True):
            count = query_count - later
            if count > 0:
                rows = slice(query_start + later, query_start + query_count)
                part = slice(key_start, key_start + count)  # a stripe is at most one token longer or shorter
                attended.merge(attend(query[rows], passing[0, part], passing[1, part], causal=True), rows)
            query_start += query_count
            key_start += key_count

    def _exchange(
        self, layer: int, query: torch.Tensor, mine: _Here,
        asked: dict[int, torch.Tensor], asking: dict[int, _Here], group: Group,
    ) -> Attended:  # fmt: skip
        """Attention of the own requests' queries over all that hold them, and what others ask of this member."""
        heads, size = query.shape[1:]
        queries, returns = group.exchange(), group.exchange()
        asks = [queries.send(query[rows], peer) for peer, rows in asked.items()]
        asked_here = {
            peer: queries.receive(query.new_empty((len(here.keys.counts), heads, size)), peer)
            for peer, here in asking.items()
        }
        answers = {
            peer: returns.receive(query.new_empty((len(rows), heads, size + 1), dtype=torch.float32), peer)
            for peer, rows in asked.items()
        }
        queries.begin()
        attended = self._attend_here(layer, query, mine)  # while queries travel
        sent = []
        for peer, arriving in asked_here.items():
            found = self._attend_here(layer, arriving.wait(), asking[peer])
            sent.append(returns.send(torch.cat((found.output, found.weight[..., None]), dim=-1), peer))
        returns.begin()
        for peer, arriving in answers.items():
            answer = arriving.wait()
            attended.merge(Attended(answer[..., :-1], answer[..., -1]), asked[peer])
        for each in (*asks, *sent):
            each.wait()
        return attended

    def _here(self, steps: Sequence[Step]) -> _Here:
        """What this member holds of the requests of ``steps``."""
        slots, counts = self.pool.slots([step.request for step in steps])
        return _Here(slots, Keys(counts, self._model.device))

    def _attend_here(self, layer: int, query: torch.Tensor, here: _Here) -> Attended:
        """Attention of one query per step over what this member holds of its request."""
        return here.keys.attend(query, *self.pool.read(layer, here.slots))
