"""Times of one instance on a GPU, beside transformers on the same, and what of its memory is used.

    python -m bench.elastic.gpu.alone DEVICE FOLDER

Makes the model of `models` in ``FOLDER``. Runs in the engine environment.
"""

import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import Sizes, make, settings_of
from pointsman.serving.elastic.iterations import Prompt, Sampling, Step
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.instance.loading import load

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


def seconds(device: str, work: Callable[[], Any], repeats: int) -> list[float]:
    """Of each repetition after one that is not counted."""
    found = []
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(round(time.perf_counter() - began_s, 6))
    return found[1:]


def ids_of(sizes: Sizes, tokens: int) -> tuple[int, ...]:
    """A drawn prompt."""
    torch.manual_seed(tokens)
    return tuple(torch.randint(sizes.model["vocab_size"], (tokens,)).tolist())


def times(
    sizes: Sizes, device: str, prefill: Callable[[tuple[int, ...]], Any], steps_of: Callable[[int], Callable[[], Any]]
) -> dict[str, list[float]]:
    """Of ``prefill`` of each length, and of the decode step that ``steps_of`` returns for each batch."""
    prefills = {n: seconds(device, partial(prefill, ids_of(sizes, n)), sizes.repeats) for n in sizes.lengths}
    steps = {batch: seconds(device, steps_of(batch), STEPS) for batch in sizes.batches}
    return {f"prefill {n}": took for n, took in prefills.items()} | {f"decode {n}": took for n, took in steps.items()}


@torch.inference_mode()  # type: ignore[untyped-decorator]
def of_transformers(model: Any, sizes: Sizes, device: str) -> dict[str, Any]:
    """Prefills with a cache and the last token's logits, and decode steps, of a batch of equal lengths."""
    of = model.config

    def prefill(ids: tuple[int, ...]) -> None:
        model(torch.tensor([ids], device=device), logits_to_keep=1)

    def steps_of(batch: int) -> Callable[[], Any]:
        cache = DynamicCache(config=of)
        size = (batch, of.num_key_value_heads, sizes.context, of.head_dim)
        for layer in range(of.num_hidden_layers):
            drawn = [torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2)]
            cache.update(*drawn, layer)
        ids = torch.full((batch, 1), 7, device=device)
        return lambda: model(ids, past_key_values=cache).logits[:, -1].argmax(-1).tolist()

    return {"attention": of._attn_implementation, **times(sizes, device, prefill, steps_of)}


def of_instance(instance: Instance, sizes: Sizes, device: str) -> dict[str, Any]:
    """The same by one instance, greedily; each request has drawn KV."""

    def prefill(ids: tuple[int, ...]) -> None:
        prompt = Prompt("p", ids, ((0, len(ids)),))
        sample(instance.prefill([prompt], Group.alone()), {"p": GREEDY}, {"p": len(ids)})
        instance.pool.release("p")

    def steps_of(batch: int) -> Callable[[], None]:
        requests, positions = [f"{batch}-{number}" for number in range(batch)], itertools.count(sizes.context)
        for request in requests:
            instance.pool.allocate(request, range(sizes.context))

        def step() -> None:
            position = next(positions)
            logits = instance.decode([Step(request, 7, position, 0, (0,)) for request in requests], Group.alone())
            sample(logits, dict.fromkeys(logits, GREEDY), dict.fromkeys(logits, position + 1))

        return step

    return times(sizes, device, prefill, steps_of)


def memory(instance: Instance, sizes: Sizes, device: str) -> dict[str, Any]:
    """What the longest prompt takes beside a pool of all slots."""
    prompt = Prompt("long", ids_of(sizes, sizes.longest), ((0, sizes.longest),))
    found: dict[str, Any] = {"slots": instance.pool.free}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began_s = time.perf_counter()
    instance.prefill([prompt], Group.alone())
    if device == "cuda":
        torch.cuda.synchronize()
        found["activations_gib"] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)
    found["seconds"] = round(time.perf_counter() - began_s, 3)
    instance.pool.release("long")
    return found


def main(device: str, folder: Path) -> None:
    """All of it."""
    findings, sizes = Findings(), Sizes.on(device)
    findings.step("computer", partial(computer, device))
    model = make(folder, sizes, device)
    findings.step("transformers", partial(of_transformers, model, sizes, device))
    del model
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    loaded = load(settings_of(folder, device, "bfloat16", None))
    instance = loaded.instance(loaded.fits)
    for layer in itertools.chain(instance.pool._keys, instance.pool._values):
        layer.normal_()  # what is all zeros is faster to multiply
    findings.step("memory", partial(memory, instance, sizes, device))
    findings.step("times", partial(of_instance, instance, sizes, device))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
