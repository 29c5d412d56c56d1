"""vLLM's scheduler with roseinfer's prefill admission: loaded by the local engine of ``pointsman bench streaming``.

Each step admits what ``pointsman.serving.token_budget.take_pending`` takes off the waiting requests: first in, first
out, at most ``POINTSMAN_BENCH_PREFILL_REQUESTS`` requests and ``POINTSMAN_BENCH_PREFILL_TOKENS`` prompt tokens; a
larger prompt is admitted alone. What is not admitted waits for the next step. Imports vLLM: only an engine loads it.
"""

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from pointsman.serving.token_budget import take_pending

MAX_REQUESTS = "POINTSMAN_BENCH_PREFILL_REQUESTS"
MAX_TOKENS = "POINTSMAN_BENCH_PREFILL_TOKENS"


@dataclass(frozen=True)
class _Waiting:
    request: Any
    prompt_tokens: int


class AdmissionScheduler(Scheduler):  # type: ignore[misc]  # vLLM is in the engine's environment only
    """See the module. A budget that is not set limits nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_requests = int(os.environ[MAX_REQUESTS])
        tokens = os.environ.get(MAX_TOKENS)
        self._max_tokens = int(tokens) if tokens else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step over the admitted requests; the others are put back behind them."""
        pending = deque(_Waiting(request, request.num_tokens) for request in self.waiting)
        take_pending(
            pending,
            max_requests=self._max_requests,
            budget_tokens=self._max_tokens,
            max_context_tokens=self.max_model_len,
        )
        held = [waiting.request for waiting in pending]
        self.waiting.remove_requests(held)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            for request in held:
                self.waiting.add_request(request)
