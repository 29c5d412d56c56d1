"""Which worker gets which role, how it is proved, and when it becomes routable.

A worker starts without a role. The operator gives it the role of its label, has it answer a real request in that role,
and only then writes ``routable``. The proof names the container: a restarted container has none, so it comes back
without a role and walks the same way again.
"""

import zlib
from collections.abc import Iterator

from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.operator.core.actions import GiveRole, SetPrefillTokenBudget, VerifyWorker, WorkerAction
from pointsman.operator.core.desired import pool_target
from pointsman.operator.core.kv_groups import lacks_decode_peer
from pointsman.operator.core.messages import reasons as text
from pointsman.operator.core.pod_changes import add_to_routing, remove_from_routing
from pointsman.operator.core.snapshot import Snapshot, Worker


def role_actions(snapshot: Snapshot) -> Iterator[WorkerAction]:
    """The next step of every worker on its way to routable; workers that are there get none."""
    for worker in snapshot.workers:
        if worker.active and worker.role is not None and worker.busy is None and not _leaves_role(worker, snapshot):
            action = _next_step(worker, worker.role, snapshot)
            if action is not None:
                yield action


def _leaves_role(worker: Worker, snapshot: Snapshot) -> bool:
    """A switch holds it and it is still in its old role: it must not be made routable there again."""
    if worker.claim is None or worker.role is not worker.claim.source:
        return False
    switch = next((s for s in snapshot.switches if s.uid == worker.claim.uid), None)
    return switch is not None and not switch.ended and switch.status.phase is not SwitchPhase.ROLLING_BACK


def _next_step(worker: Worker, role: Role, snapshot: Snapshot) -> WorkerAction | None:
    state, url = worker.state, worker.control_url
    if worker.routable_label and not worker.is_verified:
        return remove_from_routing(worker, text.not_verified(role))
    if state is None or url is None or state.phase in (WorkerPhase.STARTING, WorkerPhase.FAILED):
        return None
    serves_role = serves(state, role)
    if worker.routable_label and not serves_role:
        return remove_from_routing(worker, text.not_in_role(state.phase, state.role, role))
    if not serves_role:
        return GiveRole(
            worker=worker.name,
            uid=worker.uid,
            url=url,
            role=role,
            prefill_token_budget=snapshot.prefill_token_budget,
            why=text.role_missing(role, state.phase),
        )
    if role is Role.PREFILL and state.prefill_token_budget != snapshot.prefill_token_budget:
        return SetPrefillTokenBudget(
            worker=worker.name,
            uid=worker.uid,
            url=url,
            prefill_token_budget=snapshot.prefill_token_budget,
            why=text.budget_differs(state.prefill_token_budget),
        )
    if state.verified is role:
        if worker.routable_label:
            return None
        return add_to_routing(worker, state.metrics_port, text.verified(role))
    if role is not Role.PREFILL:
        why = text.verification_due(role, None)
        return VerifyWorker(worker=worker.name, uid=worker.uid, url=url, role=role, partner_url=None, why=why)
    if lacks_decode_peer(worker, snapshot.workers):
        return None  # nobody would pull what it prefills; `status` says KvIncompatible
    partner = prefill_partner(worker, snapshot)
    if partner is None and pool_target(snapshot, Role.DECODE).replicas > 0:
        return None  # a worker that can pull comes; `status` says what is waited for
    return VerifyWorker(
        worker=worker.name,
        uid=worker.uid,
        url=url,
        role=role,
        partner_url=partner.control_url if partner else None,
        partner=partner.name if partner else None,
        why=text.verification_due(role, partner.name if partner else None),
    )


def serves(state: WorkerState, role: Role | None) -> bool:
    """The worker takes requests in this role."""
    return state.role is role and state.phase is WorkerPhase.SERVING


def prefill_partner(worker: Worker, snapshot: Snapshot) -> Worker | None:
    """Who pulls the KV when ``worker`` is verified as prefill worker: a proved decode worker before one just started.

    Only equal ``kv_compatibility`` is ever paired. Of partners that are equally good each worker takes another one, and
    another one the next second: many new workers do not all connect to the same, and one bad partner holds up nobody.
    """
    candidates = [
        other
        for other in snapshot.workers
        if other.uid != worker.uid
        and other.role in LANGUAGE_ROLES
        and other.active
        and other.pod_ip is not None
        and other.pod_ready
        and other.kv_compatibility == worker.kv_compatibility
        and (other.ready or (other.state is not None and other.state.phase in (WorkerPhase.IDLE, WorkerPhase.SERVING)))
    ]
    if not candidates:
        return None

    def rank(other: Worker) -> tuple[bool, bool]:
        return other.role is not Role.DECODE, not other.ready

    best = min(map(rank, candidates))
    equals = sorted((other for other in candidates if rank(other) == best), key=lambda other: other.name)
    return equals[zlib.crc32(f"{worker.uid}/{snapshot.now_s:.0f}".encode()) % len(equals)]
