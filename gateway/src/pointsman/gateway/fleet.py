"""The workers this gateway knows, which of them it may use at this moment, and the choice among them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from pointsman.api.protocol.control import EndpointsReport, EndpointState
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.encode_choice import Encoder, choose_encoder
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.load_book import Entry, LoadBook
from pointsman.gateway.core.router import CostFunction, choose
from pointsman.gateway.processor import Model
from pointsman.gateway.types import Candidate, Choice, Discovered, Load, Worker, WorkerKey
from pointsman.serving.ejection import EjectionRule, Health
from pointsman.serving.flow_control import UNBOUNDED, InFlight
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.objectives import Objectives

log = logging.getLogger(__name__)

MAX_IMAGE_BLOCKS: Final = 200_000
"""Bound of the index of prompts with images, in blocks summed over the workers (about 200 bytes each)."""

MOST_SUSPECT_TIMES: Final = 30
"""An ejection lasts at most so many times the first one's time."""


@dataclass(slots=True)
class Member:
    """One worker of the routable set, and what this gateway found out about it."""

    worker: Worker
    model: Model | None = None
    health: Health = field(default_factory=Health)


class _Usable(NamedTuple):
    """A member that client requests may go to."""

    key: WorkerKey
    member: Member
    model: Model
    digest: str


@dataclass(frozen=True, slots=True)
class Pick:
    """A worker chosen for one attempt. ``entry`` must be ended by whoever got it.

    ``uses``: how often prompts used the blocks of the prefix lately, where the KV index counts it. ``known_down``: it
    could not be reached a moment ago, and there is no other.
    """

    worker: Worker
    choice: Choice
    entry: Entry
    rule: RoutingRule | None
    uses: Sequence[int] = ()
    known_down: bool = False


@dataclass(frozen=True, slots=True)
class EncoderPick:
    """An encode worker chosen for one image. ``entry`` must be ended by whoever got it."""

    worker: Worker
    entry: Entry


class Fleet:
    """The routable set. Discovery replaces it as a whole; everything else annotates its members.

    A worker is *usable* for client requests when it is a decode worker and its model is known. One that cannot be
    reached, or fails (`serving.ejection`), is *suspect* for a while: others are preferred. Of those that fail at most
    half of the workers are avoided, because more at once is more likely the requests' fault.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: Random,
        cost: CostFunction,
        index: KvIndex,
        load_of: Callable[[Worker], Load],
        suspect_seconds: float,
    ) -> None:
        self.index = index
        self.image_index = KvIndex(max_blocks=MAX_IMAGE_BLOCKS)
        self.book = LoadBook()
        self.synced = False
        self.rule: RoutingRule | None = None
        self.bounds = UNBOUNDED
        self.objectives: Objectives | None = None
        self.service_uid: str | None = None
        self._members: dict[WorkerKey, Member] = {}
        self._usable: tuple[_Usable, ...] = ()
        self._encoders: tuple[Member, ...] = ()
        self._model: Model | None = None
        self._adapters: frozenset[str] = frozenset()
        self._same_model = True
        self._clock = clock
        self._rng = rng
        self._cost = cost
        self._load_of = load_of
        self._ejection = EjectionRule(suspect_seconds, MOST_SUSPECT_TIMES * suspect_seconds)
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._room_listeners: list[Callable[[], None]] = []
        self._prefill_workers = 0
        self.book.on_less = self._room_changed
        self.book.counted = lambda new_tokens: self.bounds.counted(new_tokens)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The routable set, of all roles."""
        return tuple(member.worker for member in self._members.values())

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of the routable set."""
        self._listeners.append(listener)

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever there may be room for more: something ended, or workers or bounds changed."""
        self._room_listeners.append(listener)

    def apply(self, discovered: Discovered) -> None:
        """Discovery's newest word. What is known about workers that stay is kept."""
        before = self._members
        self._members = {}
        for worker in discovered.workers:
            old = before.get(worker.key)
            keep = old is not None and old.worker.url == worker.url
            self._members[worker.key] = Member(worker, old.model, old.health) if keep and old else Member(worker)
        for key in before.keys() - self._members.keys():
            self.index.cleared(key)
            self.image_index.cleared(key)
            log.info("worker left", extra={"worker": before[key].worker.name, "role": before[key].worker.role})
        for key in self._members.keys() - before.keys():
            worker = self._members[key].worker
            log.info("worker joined", extra={"worker": worker.name, "role": worker.role, "url": worker.url})
        if discovered.rule != self.rule:
            log.info("routing numbers", extra={"rule": str(discovered.rule)})
        if discovered.bounds != self.bounds:
            log.info("flow control", extra={"bounds": str(discovered.bounds)})
        self.rule = discovered.rule
        self.bounds = discovered.bounds
        self.objectives = discovered.objectives
        self.service_uid = discovered.service_uid or self.service_uid
        self.synced = True
        self.book.sweep(set(self._members))
        self._notify()
        for listener in self._listeners:
            listener()

    def set_model(self, key: WorkerKey, model: Model) -> None:
        """``key`` serves ``model``: from now on it is usable."""
        member = self._members.get(key)
        if member is not None:
            member.model = model
            self._notify()

    def needs_model(self) -> list[Worker]:
        """Decode workers whose model is not known yet."""
        return [m.worker for m in self._members.values() if m.model is None and m.worker.role is Role.DECODE]

    def draw_model(self, adapter: str | None = None) -> Model | None:
        """What a usable worker serves that is drawn at random; as ``model`` where there are none.

        ``adapter``: of a worker that has this LoRA adapter; None where there is none.

        While two tokenizers are there, as in a rollout, each request is tokenised with one of them and can only go to
        its workers. So each must have its share of the requests, or the workers of the other one get none.
        """
        model = self._model
        if adapter is not None:
            having = [one.model for one in self._usable if adapter in one.model.info.adapters]
            return self._rng.choice(having) if having else None
        if model is None or self._same_model:
            return model
        served_name = model.info.served_name
        return self._rng.choice([one.model for one in self._usable if one.model.info.served_name == served_name])

    @property
    def model(self) -> Model | None:
        """What most usable workers serve; the last such when there are none; None if there never was one."""
        return self._model

    @property
    def adapters(self) -> frozenset[str]:
        """Names of the LoRA adapters of the usable workers; of the last such when there are none."""
        return self._adapters

    def pick(
        self,
        *,
        prompt_tokens: int,
        chain: Sequence[int],
        image_chain: Sequence[int] = (),
        digest: str | None,
        avoid: Collection[WorkerKey],
        streamed: bool = True,
        adapter: str | None = None,
    ) -> Pick | None:
        """A worker for one attempt, or None when nobody may take it now.

        ``image_chain``: block hashes of a prompt with images, by this gateway's own stand-ins for them;
        ``digest``: only workers of this model (the prompt was tokenised with it); ``avoid``: tried already;
        ``streamed``: the first token will be seen; ``adapter``: only workers that have this LoRA adapter, for while
        one is being added some have it and others answer 404.
        """
        now_s = self._clock()
        usable = [
            one
            for one in self._usable
            if one.key not in avoid
            and (digest is None or one.digest == digest)
            and (adapter is None or adapter in one.model.info.adapters)
        ]
        usable = self._preferred(usable, now_s)
        if not usable:
            return None
        matches, uses = self.index.find_matches(chain)
        if image_chain:
            # No worker reports blocks with images. Where this gateway sent such a prompt, its prefix probably still is.
            for key, held in self.image_index.matches(image_chain).items():
                matches[key] = max(matches.get(key, 0), held)
        candidates = []
        for key, member, model, _digest in usable:
            totals = self.book.of(key)
            load = self._load_of(member.worker)
            blocks = load.kv_active_blocks
            candidates.append(
                Candidate(
                    key,
                    matches.get(key, 0) * model.info.block_size,
                    load,
                    totals.pending_requests,
                    totals.pending_tokens,
                    totals.active_requests,
                    totals.active_tokens,
                    totals.last_chosen,
                    self._prefill_workers > 0,
                    None if blocks is None else blocks * model.info.block_size,
                )
            )
        choice = choose(self._cost, prompt_tokens, candidates, self._rng)
        chosen = choice.chosen
        if image_chain:
            self.image_index.stored_chain(chosen.key, image_chain, parent=None)
        entry = self.book.begin(
            chosen.key, prompt_tokens=prompt_tokens, overlap_tokens=chosen.overlap_tokens, streamed=streamed
        )
        member = self._members[chosen.key]
        known_down = member.health.unreachable and member.health.avoided(now_s)
        self._ejection.chosen(member.health, now_s)
        return Pick(member.worker, choice, entry, self.rule, uses, known_down)

    def _preferred(self, usable: list[_Usable], now_s: float) -> list[_Usable]:
        """Those of ``usable`` that are not avoided now; all, if there is no other."""
        good = [one for one in usable if not one.member.health.avoided(now_s)]
        if len(good) == len(usable):
            return usable
        avoided = [one for one in self._usable if one.member.health.avoided(now_s)]
        failing = [one for one in avoided if not one.member.health.unreachable]
        excess = len(failing) - len(self._usable) // 2
        if excess > 0:  # those whose time is over first are used in spite of it
            failing.sort(key=lambda one: one.member.health.avoided_until_s)
            spared = {one.key for one in failing[:excess]}
            good = [one for one in usable if one.key in spared or not one.member.health.avoided(now_s)]
        return good or usable

    @property
    def has_encoders(self) -> bool:
        """Whether there are encode workers, however they do."""
        return bool(self._encoders)

    def has_encoder(self, key: WorkerKey) -> bool:
        """Whether ``key`` is an encode worker that is used now."""
        member = self._members.get(key)
        return member is not None and member.worker.role is Role.ENCODE and not member.health.avoided(self._clock())

    def pick_encoder(
        self, image: str, tokens: int, *, holder: WorkerKey | None, avoid: Collection[WorkerKey]
    ) -> EncoderPick | None:
        """An encode worker for ``image``, of so many tokens; None: there is none that was not tried and works.

        ``holder``: the one that has its embedding; ``avoid``: tried already. One that is ejected is not used, because
        the worker that prefills encodes too.
        """
        now_s = self._clock()
        usable = [m for m in self._encoders if m.worker.key not in avoid and not m.health.avoided(now_s)]
        if not usable:
            return None
        loads = [Encoder(m.worker.key, self.book.of(m.worker.key).pending_tokens) for m in usable]
        key = choose_encoder(image, tokens, loads, holder)
        member = self._members[key]
        self._ejection.chosen(member.health, now_s)
        return EncoderPick(member.worker, self.book.begin(key, prompt_tokens=tokens, overlap_tokens=0, streamed=False))

    def in_flight(self) -> InFlight:
        """What this gateway has at the workers, for flow control.

        Prompts wait wherever they were sent, for prefill workers serve all; what decodes counts where more would go.
        """
        return InFlight(
            pending_tokens=self.book.awaited_tokens,
            decoding=sum(self.book.of(one.key).decoding for one in self._usable),
            prefill_workers=self._prefill_workers,
            decode_workers=len(self._usable),
            pending_prompts=self.book.awaited_prompts,
        )

    def failed(self, key: WorkerKey, *, unreachable: bool) -> bool:
        """The worker failed a request, because its connection did if ``unreachable``. True: it is suspect now."""
        member = self._members.get(key)
        if member is None:
            return False
        ejected = self._ejection.failed(member.health, self._clock(), unreachable=unreachable)
        if ejected:
            log.warning(
                "worker ejected",
                extra={
                    "worker": member.worker.name,
                    "why": "unreachable" if unreachable else "failing",
                    "ejections": member.health.ejections,
                },
            )
        return ejected

    def answered(self, key: WorkerKey) -> None:
        """This worker answered a request, a stream to its end."""
        member = self._members.get(key)
        if member is not None:
            self._ejection.answered(member.health, self._clock())

    def counts(self) -> dict[tuple[Role, str], int]:
        """Members by role and state (``usable``, ``suspect`` or ``unknown-model``)."""
        now_s = self._clock()
        counts: Counter[tuple[Role, str]] = Counter()
        for member in self._members.values():
            if member.health.avoided(now_s):
                state = "suspect"
            elif member.model is None and member.worker.role is Role.DECODE:
                state = "unknown-model"
            else:
                state = "usable"
            counts[member.worker.role, state] += 1
        return dict(counts)

    def report(self, gateway: str) -> EndpointsReport:
        """The routable set as the operator's drain reads it."""
        now_s = self._clock()
        return EndpointsReport(
            gateway=gateway,
            synced=self.synced,
            endpoints=tuple(
                EndpointState(
                    worker=m.worker.name,
                    uid=m.worker.key,
                    url=m.worker.url,
                    role=m.worker.role,
                    in_flight=self.book.of(m.worker.key).in_flight,
                    suspect=m.health.avoided(now_s),
                    ejections=m.health.ejections,
                )
                for m in sorted(self._members.values(), key=lambda m: m.worker.name)
            ),
        )

    async def wait_change(self, timeout_seconds: float) -> None:
        """Return when the set or a member's model changed, or after ``timeout_seconds``."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        """The set or a member's model changed: derive what every request asks for, and wake those who wait."""
        self._usable = tuple(
            _Usable(key, member, member.model, member.model.digest)
            for key, member in self._members.items()
            if member.worker.role is Role.DECODE and member.model is not None
        )
        self._encoders = tuple(m for m in self._members.values() if m.worker.role is Role.ENCODE)
        self._prefill_workers = sum(member.worker.role is Role.PREFILL for member in self._members.values())
        models = {one.digest: one.model for one in self._usable}
        self._same_model = len(models) < 2
        if models:
            self._adapters = frozenset(name for one in self._usable for name in one.model.info.adapters)
            counts = Counter(one.digest for one in self._usable)
            # A model on which the gateway's own rendering was proved wins a tie.
            self._model = models[max(models, key=lambda digest: (counts[digest], models[digest].chat_verified, digest))]
        self._changed.set()
        self._changed = asyncio.Event()
        self._room_changed()

    def _room_changed(self) -> None:
        for listener in self._room_listeners:
            listener()
