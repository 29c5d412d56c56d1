"""Instances that do what rounds plan, one iteration after another, and check every plan before."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.memory import SlotDemand, is_safe
from pointsman.serving.elastic.round import RoundPlan, plan_round
from pointsman.serving.elastic.types import Instance, RunningRequest, Settings, Snapshot, WaitingRequest


@dataclass
class Iteration:
    """Under way: ``instances`` are busy until it ends."""

    instances: tuple[str, ...]
    requests: tuple[str, ...]
    decodes: bool


@dataclass
class World:
    """``slots``: of each instance; ``domain_of``: where it may form groups. Every request runs to its most output."""

    slots: dict[str, int]
    domain_of: dict[str, int]
    model: LatencyModel
    settings: Settings
    rng: random.Random
    waiting: dict[str, WaitingRequest] = field(default_factory=dict)
    running: dict[str, RunningRequest] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    finished: Counter[str] = field(default_factory=Counter)
    too_large: set[str] = field(default_factory=set)
    most_output: dict[str, int] = field(default_factory=dict)
    recomputed: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    may_be_unsafe: bool = False

    def used(self, name: str) -> int:
        """Slots of an instance that hold a token, or will at the end of an iteration under way."""
        return sum(request.tokens_by_instance.get(name, 0) for request in self.running.values())

    def snapshot(self) -> Snapshot:
        """What a round reads now."""
        busy = {name for iteration in self.iterations for name in iteration.instances}
        decoding = {name for iteration in self.iterations if iteration.decodes for name in iteration.instances}
        instances = [
            Instance(
                name,
                slots,
                self.used(name),
                self.domain_of[name],
                name in busy,
                name in self.draining,
                decoding=name in decoding,
            )
            for name, slots in self.slots.items()
        ]
        waiting = list(self.waiting.values())
        self.rng.shuffle(waiting)
        mean_s = self.rng.choice([None, 0.0, 1.0, 1e6])
        return Snapshot(tuple(instances), tuple(waiting), tuple(self.running.values()), mean_s)

    def round(self) -> RoundPlan:
        """Plan, check the plan, and begin what it says."""
        snapshot = self.snapshot()
        plan = plan_round(snapshot, self.model, self.settings)
        assert plan == plan_round(snapshot, self.model, self.settings), "the same snapshot gives the same plan"
        self._check_groups(plan)
        self._move(plan)
        self._prefill(plan)
        self._decode(plan)
        self._put_back(plan)
        for name, slots in self.slots.items():
            assert self.used(name) <= slots, f"{name} has more tokens than slots"
        if not self.may_be_unsafe:
            assert not plan.recompute, "nothing is evicted while the instances stay"
            self._check_future()
        return plan

    def end_one_iteration(self) -> bool:
        """Let a random iteration end. False if none is under way."""
        if not self.iterations:
            return False
        ended = self.iterations.pop(self.rng.randrange(len(self.iterations)))
        for request_id in ended.requests:
            request = self.running.get(request_id)
            if request is None:
                continue
            request = replace(
                request,
                generated_tokens=request.generated_tokens + 1,
                decode_s=request.decode_s + (0.1 if request.generated_tokens else 0.0),
            )
            self.running[request_id] = request
            if request.generated_tokens == self.most_output[request_id]:
                self.finished[request_id] += 1
                del self.running[request_id]
        return True

    def lose(self, name: str) -> None:
        """An instance dies: iterations with it are cancelled, and requests with KV there wait again."""
        for iteration in [each for each in self.iterations if name in each.instances]:
            self.iterations.remove(iteration)
            for request_id in iteration.requests:
                if request_id in self.running:
                    self._wait_again(request_id)
        for request_id in [each.id for each in self.running.values() if name in each.tokens_by_instance]:
            self._wait_again(request_id)
        del self.slots[name]
        self.draining.discard(name)
        self.may_be_unsafe = True

    def remove_drained(self) -> None:
        """Instances that drained to the end leave."""
        busy = {name for iteration in self.iterations for name in iteration.instances}
        for name in [each for each in self.draining if not self.used(each) and each not in busy]:
            del self.slots[name]
            self.draining.remove(name)

    def _wait_again(self, request_id: str) -> None:
        request = self.running.pop(request_id)
        generated = request.generated_tokens
        most_output = self.most_output[request_id]
        prompt = request.max_kv_tokens + 1 - most_output + generated
        self.waiting[request_id] = WaitingRequest(request_id, prompt, most_output - generated, request.arrival_s)
        self.passed[request_id] = 0

    def _check_groups(self, plan: RoundPlan) -> None:
        busy = Counter(name for iteration in self.iterations for name in iteration.instances)
        groups = [each.instances for each in plan.prefills] + [each.instances for each in plan.decodes]
        taken = busy + Counter(name for group in groups for name in group)
        assert all(count == 1 for count in taken.values()), f"groups are not disjoint: {taken}"
        assert all(len({self.domain_of[name] for name in group}) == 1 for group in groups)
        assert not {end for move in plan.moves for end in (move.source, move.target)} & set(busy)
        prefilled = [request.id for batch in plan.prefills for request in batch.requests]
        stepping = [request for each in plan.decodes for request, _ in each.masters]
        paused = [*plan.paused, *(request for each in plan.decodes for request in each.paused)]
        assert max(Counter(prefilled + stepping + paused).values(), default=1) == 1, "one iteration for each request"
        settled = {each.id for each in self.running.values() if not set(busy) & set(each.tokens_by_instance)}
        assert set(stepping) | set(paused) | set(plan.recompute) == settled, "each request is told what it does"
        assert set(prefilled) | set(plan.overtaken) | set(plan.too_large) == set(self.waiting)
        assert all(len(batch.instances) in self.model.by_degree for batch in plan.prefills)

    def _move(self, plan: RoundPlan) -> None:
        for move in plan.moves:
            tokens = dict(self.running[move.request].tokens_by_instance)
            tokens[move.source] -= move.tokens
            assert move.tokens > 0 and tokens[move.source] >= 0, "no token is moved that is not there"
            tokens[move.target] = tokens.get(move.target, 0) + move.tokens
            assert move.why == "vacate" or (move.source in self.draining and move.why == "drain")
            assert move.target not in self.draining
            assert self.domain_of[move.source] == self.domain_of[move.target]
            self.moved[move.why] += move.tokens
            held = {name: count for name, count in tokens.items() if count}
            self.running[move.request] = replace(self.running[move.request], tokens_by_instance=held)
            assert self.used(move.target) <= self.slots[move.target]

    def _prefill(self, plan: RoundPlan) -> None:
        admitted = {request.id for batch in plan.prefills for request in batch.requests}
        self.too_large |= set(plan.too_large)
        for request_id in plan.too_large:
            del self.waiting[request_id]
        for request in self.waiting.values():
            if request.id not in admitted:
                later = [each for each in admitted if self.waiting[each].arrival_s > request.arrival_s]
                self.passed[request.id] += len(later)
                assert self.passed[request.id] <= self.settings.max_overtakes, "overtaken too often"
                assert plan.overtaken[request.id] >= self.passed[request.id]
        for batch in plan.prefills:
            for prompt in batch.requests:
                waiting = self.waiting.pop(prompt.id)
                owners = dict(prompt.owners)
                assert len(owners) == len(prompt.owners), "an owner keeps one run of positions"
                assert all(count > 0 for count in owners.values())
                assert sum(owners.values()) == waiting.prompt_tokens, "no token lost or doubled"
                assert set(owners) <= set(batch.instances) and not set(owners) & self.draining
                self.most_output[prompt.id] = waiting.max_output_tokens
                self.running[prompt.id] = RunningRequest(
                    prompt.id, waiting.prompt_tokens + waiting.max_output_tokens - 1, waiting.arrival_s, 0, 0.0, owners
                )
            self.iterations.append(Iteration(batch.instances, tuple(each.id for each in batch.requests), decodes=False))
        self.waiting = {name: replace(each, overtaken=plan.overtaken[name]) for name, each in self.waiting.items()}

    def _decode(self, plan: RoundPlan) -> None:
        for each in plan.decodes:
            assert each.masters, "no group is formed for nothing"
            for request_id, master in each.masters:
                request = self.running[request_id]
                assert request.generated_tokens > 0
                assert set(request.tokens_by_instance) <= set(each.instances), "all of its KV is in the group"
                assert master in each.instances
                assert master not in self.draining or any("continues meanwhile" in reason for reason in plan.reasons)
                tokens = {**request.tokens_by_instance, master: request.tokens_by_instance.get(master, 0) + 1}
                self.running[request_id] = replace(request, tokens_by_instance=tokens)
            self.iterations.append(
                Iteration(each.instances, tuple(request for request, _ in each.masters), decodes=True)
            )

    def _put_back(self, plan: RoundPlan) -> None:
        for request_id in plan.recompute:
            self.recomputed += 1
            self._wait_again(request_id)

    def _check_future(self) -> None:
        """All requests can still run to their most output. What is counted now includes iterations under way."""
        stepping = {request for iteration in self.iterations for request in iteration.requests}
        demands: dict[int, list[SlotDemand]] = {}
        for request in self.running.values():
            domain = self.domain_of[next(iter(request.tokens_by_instance))]
            left = self.most_output[request.id] - request.generated_tokens - (request.id in stepping)
            demands.setdefault(domain, []).append(SlotDemand(request.tokens, left))
        for domain, of_domain in demands.items():
            slots = sum(slots for name, slots in self.slots.items() if self.domain_of[name] == domain)
            assert is_safe(of_domain, slots), "a request could be evicted later"
