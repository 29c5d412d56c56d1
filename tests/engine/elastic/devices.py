"""Where each tensor of the engine lies on a GPU, without one: torch's fake tensors have a device and no data.

    python -m engine.elastic.devices MODEL_FOLDER

An operation on tensors of two devices raises, as it does on a real GPU. Prints JSON: the device and type of the logits.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor

from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.architecture import Shape, read_shape
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.weights import Layer, Weights

GPU = torch.device("cuda", 0)


class Here:
    """What was sent or received: nothing travels."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> torch.Tensor:
        """As it is."""
        assert self._tensor.device == GPU, self._tensor.device
        return self._tensor


class AtOnce:
    """An exchange with one who is always ready."""

    def send(self, tensor: torch.Tensor, to: int) -> Any:
        """Nowhere."""
        return Here(tensor)

    def receive(self, tensor: torch.Tensor, source: int) -> Any:
        """Whatever is in it."""
        return Here(tensor)

    def begin(self) -> None:
        """Nothing travels."""


class Pair(Group):
    """The first of two members."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def exchange(self) -> Any:
        """With the other one."""
        return AtOnce()


def main(folder: Path) -> dict[str, list[str]]:
    """By type of numbers and degree: where logits of a prefill and of a decode step lie."""
    shape = read_shape(folder)
    found = {}
    fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # else tensors of one number are computed, which needs a GPU
    with fake_tensor.FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16):
            for group in (Group.alone(), Pair()):
                instance = Instance(Llama(shape, weights(shape, dtype)), KvPool(shape, 100, dtype, GPU))
                prompt = Prompt("r", tuple(range(20, 33)), ((0, 13),))  # the last of 13 is a token of the first stripe
                step = Step("r", 7, 13, 0, tuple(range(group.size)))
                logits = instance.prefill([prompt], group) | instance.decode([step], group)
                found[f"{dtype} {group.size}"] = [f"{each.device} {each.dtype}" for each in logits.values()]
    return found


def weights(shape: Shape, dtype: torch.dtype) -> Weights:
    """Of a model of ``shape``, on the GPU."""

    def some(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=GPU)

    hidden, heads, kv_heads = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = Layer(
        attention_norm=some(hidden),
        query=some(heads, hidden),
        key=some(kv_heads, hidden),
        value=some(kv_heads, hidden),
        output=some(hidden, heads),
        mlp_norm=some(hidden),
        gate=some(shape.intermediate, hidden),
        up=some(shape.intermediate, hidden),
        down=some(hidden, shape.intermediate),
    )
    vocabulary = some(shape.vocabulary, hidden)
    return Weights(vocabulary, (layer,) * shape.layers, some(hidden), vocabulary)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
