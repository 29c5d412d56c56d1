"""The table as it is written: the form of the shipped ones, with where its numbers come from."""

import math
import statistics
from datetime import datetime
from typing import Any, Final

from pointsman.planner.core.engine.performance_model import Grid
from pointsman.planner.profile.fitting import Fitted, Moved, fitted, moved
from pointsman.planner.profile.options import Options
from pointsman.planner.profile.types import Measured

SOURCE: Final = "measured by pointsman profile on a live worker: the engine's own times, without network and client"


def document(measured: Measured, options: Options, at: datetime) -> dict[str, Any]:
    """The table of what was measured. Raises ValueError if that is too little for one."""
    fit = fitted(measured.prefills, measured.steps)
    overhead_ms = statistics.median(sample.overhead_ms for sample in measured.prefills)
    grid = Grid.of(fit.prefill)
    transfer = moved(measured.transfers, lambda tokens: grid.at(tokens, 0), overhead_ms)
    facts = measured.facts
    bytes_per_token = options.kv_bytes_per_token or facts.kv_bytes_per_token
    return {
        "source": SOURCE,
        "model": options.model or facts.model,
        "system": options.gpu,
        "backend": "vllm",
        "tp": options.tp,
        "gpus": options.tp,
        "kv_capacity_tokens": facts.kv_capacity_tokens,
        "kv_bytes_per_token": bytes_per_token or (transfer.bytes_per_token if transfer else None),
        "max_context_tokens": facts.max_context_tokens,
        "max_batch": measured.max_batch,
        "prefill_ms": {"columns": ["new_tokens", "prefix_tokens", "ms"], "rows": [list(row) for row in fit.prefill]},
        "decode_step_ms": {"columns": ["batch", "context", "ms"], "rows": [list(row) for row in fit.steps]},
        "kv_transfer": _transfer(transfer, len(measured.transfers)),
        # What a client waits beside the engine's own time: HTTP, tokens in and out, scheduling.
        "request_overhead_ms": round(overhead_ms, 2),
        "fit": _fit(fit),
        "measured": {
            "at": at.isoformat(timespec="seconds"),
            "seconds": round(measured.seconds, 1),
            "engine_version": facts.version,
            "block_tokens": facts.block_tokens,
            "prefills": len(measured.prefills),
            "decode_batches": len(measured.steps),
            "decode_steps": round(sum(sample.steps for sample in measured.steps)),
            "disturbed": measured.disturbed,
            "prefill_spread": _share(fit.prefill_spread),
            "decode_spread": _share(fit.step_spread),
        },
    }


def _transfer(transfer: Moved | None, samples: int) -> dict[str, Any] | None:
    if transfer is None:
        return None
    return {
        "bytes_per_second": round(transfer.bytes_per_s),
        "hop_ms": round(transfer.hop_ms, 2),
        "samples": samples,
    }


def _fit(fit: Fitted) -> dict[str, Any]:
    """The linear model's coefficients in ms, with the names of ``core.performance``, and its mean relative errors."""
    linear = fit.linear
    return {
        "prefill": {
            "a": linear.prefill_a,
            "b": linear.prefill_b,
            "c": linear.prefill_c,
            "error": _share(fit.prefill_error),
        },
        "decode": {
            "d0": linear.decode_d0,
            "d1": linear.decode_d1,
            "d2": linear.decode_d2,
            "error": _share(fit.step_error),
        },
    }


def _share(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
