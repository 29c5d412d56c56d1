"""vLLM's ranks get the multimodal inputs of a request by input broadcast.

``--distributed-executor-backend pointsman.workers.multimodal.broadcast.vllm_executor.BroadcastExecutor`` replaces
vLLM's own executor for several processes. There, the thread that schedules pickles the inputs into the message of the
step, and each rank copies them out before it does anything else. Here the message has a stamp. The inputs go beside
it, in the background, and a rank waits for them in the step whose encoder needs them.

The engine process is the entry rank and takes no inputs; vLLM's rank *n* is rank *n* + 1. vLLM materialises inputs in
its API server, so what is sent is what came from there.
"""

import logging
import shutil
import tempfile
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from pointsman.workers.multimodal.broadcast.entry import ENTRY_RANK
from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.links import Meeting
from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics
from pointsman.workers.multimodal.broadcast.modes import Mode
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings
from pointsman.workers.multimodal.broadcast.steps import EntrySteps, RankSteps
from pointsman.workers.multimodal.exported_metrics import export

_log: Final = logging.getLogger(__name__)
_CLOSE_S: Final = 5.0


class BroadcastExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM has no types here
    """vLLM's executor for several processes, with the inputs of requests beside its messages."""

    _entry: EntryRank | None = None
    _steps: EntrySteps | None = None

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any | Future[Any]:
        """See Executor."""
        step = scheduler_output if self._steps is None else self._steps.with_stamps(scheduler_output)
        return super().execute_model(step, non_block)

    def shutdown(self) -> None:
        """See Executor."""
        entry, self._entry, self._steps = self._entry, None, None
        if entry is not None:
            entry.close(0 if self.is_failed else _CLOSE_S)
        super().shutdown()

    def _post_init_executor(self) -> None:
        """The workers run: form the group with them. Raises GroupNotJoined."""
        super()._post_init_executor()
        if self.world_size != self.local_world_size:
            _log.warning("input broadcast is off: the %d ranks are on several hosts", self.world_size)
            return
        settings = InputBroadcastSettings()
        if settings.input_broadcast_mode is Mode.AUTO:  # nothing is left to materialise, so raw inputs save nothing
            settings = settings.model_copy(update={"input_broadcast_mode": Mode.ASYNC})
        folder = Path(tempfile.mkdtemp(prefix="pointsman-inputs-"))  # only this user can enter it
        try:
            path = folder / "group.sock"
            meeting = Meeting(path)
            joined = self.collective_rpc(join_group, args=(str(path), self.world_size + 1), non_block=True)
            links = meeting.assemble(self.world_size + 1, settings.input_broadcast_join_seconds)
            at_once = any(joined.result())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._entry = EntryRank(links, _as_it_is, settings, _metrics_of(ENTRY_RANK), takes_inputs=False)
        self._steps = EntrySteps(self._entry, at_once=at_once)
        _log.info("input broadcast is on for %d ranks, mode %s", self.world_size, settings.input_broadcast_mode)


def join_group(worker: Any, path: str, world_size: int) -> bool:
    """In a worker process: join the group, and get the inputs of each step before vLLM executes it.

    ``worker``: vLLM's WorkerWrapperBase. Returns whether the model reads inputs at once. Raises GroupNotJoined.
    """
    own = worker.global_rank + 1
    metrics = _metrics_of(own)
    rank = OtherRank.join(Path(path), own, world_size, _as_it_is, metrics=metrics, private_copies=True)
    at_once = _reads_inputs_at_once(worker)
    steps = worker.input_broadcast = RankSteps(rank, at_once=at_once)
    worker.execute_model = partial(_execute_with_inputs, steps, worker.execute_model)
    return at_once


def _metrics_of(rank: int) -> BroadcastMetrics:
    """Metrics of a rank that is this process, which serves no /metrics."""
    registry = CollectorRegistry()
    export(registry, f"rank{rank}")
    return BroadcastMetrics(registry, rank)


def _execute_with_inputs(steps: RankSteps, execute_model: Any, scheduler_output: Any) -> Any:
    steps.place(scheduler_output)
    return execute_model(scheduler_output)


def _reads_inputs_at_once(worker: Any) -> bool:
    """Whether the model needs inputs beside its encoder: for positions (M-RoPE), or because it has no encoder."""
    runner = getattr(worker.worker, "model_runner", None)
    return bool(getattr(runner, "uses_mrope", True) or getattr(runner, "is_multimodal_raw_input_only_model", True))


def _as_it_is(raw: object) -> object:
    return raw
