"""How long iterations of Llama-2-7B take on A800 GPUs: a roofline that a reader can recompute by hand.

Every system is timed by these functions. No constant was fitted to a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.serving.elastic.latency_model import LatencyModel, fit_prefill_time
from pointsman.serving.elastic.requests import MemberLoad

# Of one GPU.
# A800 data sheet: 312 TFLOP/s in fp16; 60 %, as FlashAttention-2 (arXiv 2307.08691)
COMPUTE_FLOPS: Final = 312e12 * 0.6
MEMORY_BYTES_PER_S: Final = 2.0e12 * 0.8  # A800 data sheet: 2.0 TB/s; 80 %, which large copies reach
LINK_BYTES_PER_S: Final = 200e9  # A800 data sheet: NVLink 400 GB/s, which is 200 GB/s in each direction

COLLECTIVE_S: Final = 10e-6  # a small NCCL all-reduce within a node takes 8 µs on 2 GPUs and 20 µs on 8
# The paper's code counts 22 ms for a decode iteration, of which weights and KV explain 5 to 7 ms.
ITERATION_S: Final = 15e-3

# Llama-2-7B in fp16.
PARAMETERS: Final = 6.7e9
LAYERS: Final = 32
HIDDEN: Final = 4096
WEIGHT_BYTES: Final = 2 * PARAMETERS
KV_BYTES: Final = 2 * LAYERS * HIDDEN * 2  # of one token: keys and values of all layers, 512 KiB

SLOTS: Final = {2: 210_000, 4: 404_000, 8: 900_000}
"""Tokens of KV by tensor parallelism: those that the paper's artifact configures on A800-80GB."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``tokens`` of a prompt, after ``before`` tokens of it."""

    tokens: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """An engine on ``gpus`` GPUs that share every layer."""

    gpus: int

    @property
    def slots(self) -> int:
        """Tokens of KV."""
        return SLOTS[self.gpus]

    def step_s(self, decode_requests: int, decode_kv_tokens: int, chunks: Sequence[Chunk] = ()) -> float:
        """An iteration: a token of each decoding request, which read ``decode_kv_tokens``, and parts of prompts."""
        tokens = decode_requests + sum(each.tokens for each in chunks)
        attention_s = self.read_s(decode_kv_tokens) + sum(self.attention_s(each) for each in chunks)
        return ITERATION_S + self.linear_s(tokens) + attention_s + self.all_reduce_s(tokens)

    def prefill_s(self, lengths: Sequence[int]) -> float:
        """An iteration of whole prompts."""
        return self.step_s(0, 0, [Chunk(length) for length in lengths])

    def alone_s(self, prompt_tokens: int, output_tokens: int) -> tuple[float, float]:
        """Seconds to the first token and to the last one of a request that nothing else disturbs."""
        first_s, steps = self.prefill_s([prompt_tokens]), output_tokens - 1
        kv_tokens = steps * prompt_tokens + steps * (steps + 1) // 2
        return first_s, first_s + steps * self.step_s(1, 0) + self.read_s(kv_tokens)

    def linear_s(self, tokens: int) -> float:
        """All linear layers: their arithmetic, or reading the weights if that takes longer."""
        return max(2 * PARAMETERS * tokens / (self.gpus * COMPUTE_FLOPS), self.weights_s)

    @property
    def weights_s(self) -> float:
        """Reading all weights."""
        return WEIGHT_BYTES / (self.gpus * MEMORY_BYTES_PER_S)

    def attention_s(self, chunk: Chunk) -> float:
        """Of a part of a prompt: its arithmetic, or reading the KV before it if that takes longer."""
        pairs = chunk.tokens * (chunk.before + chunk.tokens / 2)
        return max(4 * HIDDEN * LAYERS * pairs / (self.gpus * COMPUTE_FLOPS), self.read_s(chunk.before))

    def read_s(self, kv_tokens: int) -> float:
        """Reading KV, which is what attention of decoding requests takes."""
        return kv_tokens * KV_BYTES / (self.gpus * MEMORY_BYTES_PER_S)

    def all_reduce_s(self, tokens: int) -> float:
        """Two all-reduces a layer, in which each GPU sends 2 (gpus - 1) / gpus of the activations."""
        sent = 2 * (self.gpus - 1) / self.gpus * tokens * HIDDEN * 2
        return 2 * LAYERS * (COLLECTIVE_S + sent / LINK_BYTES_PER_S)

    def send_s(self, kv_tokens: int) -> float:
        """Sending KV to another engine: every GPU sends its part."""
        return kv_tokens * KV_BYTES / (self.gpus * LINK_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class SequenceParallel:
    """Times of groups of elastic instances, each an engine ``one``. Nothing is overlapped with communication."""

    one: TensorParallel

    def prefill_s(self, members: int, lengths: Sequence[int]) -> float:
        """Prompts in stripes, whose KV goes round the ring."""
        tokens = sum(lengths)
        wide = TensorParallel(members * self.one.gpus)  # arithmetic is shared by all GPUs
        linear_s = max(wide.linear_s(tokens), self.one.weights_s)  # each member reads all weights
        attention_s = sum(wide.attention_s(Chunk(length)) for length in lengths)
        passed_s = tokens / members * KV_BYTES / LAYERS / (self.one.gpus * LINK_BYTES_PER_S)
        ring_s = LAYERS * (members - 1) * (COLLECTIVE_S + passed_s)
        return ITERATION_S + linear_s + attention_s + self.one.all_reduce_s(-(-tokens // members)) + ring_s

    def decode_s(self, loads: Sequence[MemberLoad]) -> float:
        """A token of each request. Members wait for the slowest one in linear layers and in attention."""
        requests = [each.requests for each in loads]
        linear_s = max(self.one.linear_s(each) + self.one.all_reduce_s(each) for each in requests)
        attention_s = max(self.one.read_s(each.kv_tokens) for each in loads)
        queries_s = sum(requests) * HIDDEN * 2 / (self.one.gpus * LINK_BYTES_PER_S)
        exchange_s = 2 * LAYERS * (COLLECTIVE_S + queries_s) if len(loads) > 1 else 0.0
        return ITERATION_S + linear_s + attention_s + exchange_s

    def move_s(self, tokens: int) -> float:
        """Handing the KV of ``tokens`` from one instance to another."""
        return tokens * self.one.send_s(1)

    def latency_model(self, degrees: Sequence[int]) -> LatencyModel:
        """What the manager would fit to measurements of these times."""
        lengths = [2**power for power in range(8, 19)]
        batches = [[length] * count for length in lengths for count in (1, 4) if length * count <= self.one.slots]
        return LatencyModel(
            {each: fit_prefill_time([(batch, self.prefill_s(each, batch)) for batch in batches]) for each in degrees}
        )
