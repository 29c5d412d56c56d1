"""Times of one instance on a GPU, beside transformers on the same, and what of its memory is used.

    python -m bench.elastic.gpu.alone DEVICE FOLDER FILE

Makes the model of `models` in ``FOLDER``. Runs in the engine environment.
"""

import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import Sizes, make, settings_of, sizes_on
from pointsman.serving.elastic.iterations import Prompt, Sampling, Step
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.instance.loading import Loaded, load

STEPS = 8
GREEDY = Sampling(temperature=0)


def computer(device: str) -> dict[str, Any]:
    """What measures here."""
    found: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    if device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        name, driver, memory = subprocess.check_output(asked, text=True).splitlines()[0].split(", ")
        found |= {"gpu": name, "driver": driver, "memory": memory, "cuda": torch.version.cuda}
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()[:3]))
    return found


def settled(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(device: str, work: Callable[[], Any], repeats: int) -> list[float]:
    """Of each repetition after one that is not counted."""
    found = []
    for number in range(repeats + 1):
        settled(device)
        began_s = time.perf_counter()
        work()
        settled(device)
        if number:
            found.append(round(time.perf_counter() - began_s, 6))
    return found


def ids_of(sizes: Sizes, tokens: int) -> tuple[int, ...]:
    """A drawn prompt."""
    torch.manual_seed(tokens)
    return tuple(torch.randint(sizes.model["vocab_size"], (tokens,)).tolist())


@torch.inference_mode()  # type: ignore[untyped-decorator]
def of_transformers(model: Any, sizes: Sizes, device: str) -> dict[str, Any]:
    """Prefills with a cache and the last token's logits, and decode steps, of a batch of equal lengths."""
    found: dict[str, Any] = {"attention": model.config._attn_implementation}
    for tokens in sizes.lengths:
        ids = torch.tensor([ids_of(sizes, tokens)], device=device)
        found[f"prefill {tokens}"] = seconds(device, lambda ids=ids: model(ids, logits_to_keep=1), sizes.repeats)  # type: ignore[misc]
    of = model.config
    for batch in sizes.batches:
        cache = DynamicCache(config=of)
        size = (batch, of.num_key_value_heads, sizes.context, of.head_dim)
        for layer in range(of.num_hidden_layers):
            drawn = [torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2)]
            cache.update(*drawn, layer)
        ids = torch.full((batch, 1), 7, device=device)

        def step(ids: Any = ids, cache: Any = cache) -> Any:
            return model(ids, past_key_values=cache).logits[:, -1].argmax(-1).tolist()

        found[f"decode {batch}"] = seconds(device, step, STEPS)
    return found


def decode_s(instance: Instance, batch: int, context: int, device: str) -> list[float]:
    """Steps of ``batch`` requests of ``context`` drawn tokens of KV each, decoded by one instance, greedily."""
    requests, positions = [f"d{number}" for number in range(batch)], itertools.count(context)
    for request in requests:
        instance.pool.allocate(request, range(context))

    def step() -> None:
        position = next(positions)
        logits = instance.decode([Step(request, 7, position, 0, (0,)) for request in requests], Group.alone())
        sample(logits, dict.fromkeys(logits, GREEDY), dict.fromkeys(logits, position + 1))

    took = seconds(device, step, STEPS)
    for request in requests:
        instance.pool.release(request)
    return took


def times(instance: Instance, sizes: Sizes, device: str) -> dict[str, Any]:
    """As `of_transformers`."""
    found: dict[str, Any] = {}
    for tokens in sizes.lengths:
        prompt = Prompt("p", ids_of(sizes, tokens), ((0, tokens),))

        def prefill(prompt: Prompt = prompt) -> None:
            sample(instance.prefill([prompt], Group.alone()), {"p": GREEDY}, {"p": len(prompt.token_ids)})
            instance.pool.release("p")

        found[f"prefill {tokens}"] = seconds(device, prefill, sizes.repeats)
    return found | {f"decode {each}": decode_s(instance, each, sizes.context, device) for each in sizes.batches}


def memory(loaded: Loaded, instance: Instance, sizes: Sizes, device: str) -> dict[str, Any]:
    """How much of the GPU long prompts take beside a pool of all slots, and what follows if it is too much."""
    found: dict[str, Any] = {"slots": loaded.fits}
    for tokens in (*sizes.lengths, sizes.longest):
        prompt = Prompt("long", ids_of(sizes, tokens), ((0, tokens),))
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began_s = time.perf_counter()
        try:
            instance.prefill([prompt], Group.alone())
            settled(device)
            outcome = "computed"
        except torch.OutOfMemoryError as error:
            outcome = str(error)[:200]
        took_s = time.perf_counter() - began_s
        instance.pool.release("long")
        found[f"{tokens} tokens"] = {"outcome": outcome, "seconds": round(took_s, 3)}
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            found[f"{tokens} tokens"] |= {
                "activations_gib": round((torch.cuda.max_memory_allocated() - before) / 2**30, 3),
                "free_gib_after": round(free / 2**30, 2), "total_gib": round(total / 2**30, 2),
            }  # fmt: skip
    prompt = Prompt("again", ids_of(sizes, sizes.lengths[0]), ((0, sizes.lengths[0]),))
    instance.prefill([prompt], Group.alone())
    instance.pool.release("again")
    found["slots_free_at_the_end"] = instance.pool.free
    return found


def main(device: str, folder: Path, file: Path) -> None:
    """All of it."""
    findings, sizes = Findings(file), sizes_on(device)
    findings.step("computer", lambda: computer(device))
    made = [findings.step("made", lambda: make(folder, sizes, device), kept=False)]
    findings.step("transformers", lambda: of_transformers(made[0], sizes, device))
    made.clear()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    loaded = findings.step("loaded", lambda: load(settings_of(folder, device, "bfloat16", None)), kept=False)
    instance = findings.step("pool", lambda: loaded.instance(loaded.fits), kept=False)
    for each in (instance.pool._keys, instance.pool._values):
        for layer in each:  # what is all zeros is faster to multiply
            layer.normal_()
    findings.step("memory", lambda: memory(loaded, instance, sizes, device))
    findings.step("times", lambda: times(instance, sizes, device))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
