"""Which tokens of greedy answers float32 can decide: transformers' model in float32 beside the same in float64.

    python -m engine.elastic.rounding MODEL_FOLDER FILE

``FILE``: JSON, a list of answers, each with its "prompt" (a text, a list of token ids, or {"chat": text}) and its
"tokens", those of the end included. Prints for each what `judge` finds. Runs in the engine environment.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class Exact:
    """Logits of a model, and what float32 changes them by."""

    def __init__(self, folder: Path) -> None:
        self._single, self._double = (
            LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval() for dtype in (torch.float32, torch.float64)
        )
        for module in self._double.modules():
            if isinstance(module, LlamaRMSNorm):
                module.register_forward_hook(_norm)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def logits(self, token_ids: list[int], last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """In float64, of the ``last`` positions [last, vocabulary]; and the largest change of any of them in float32.

        The second has one value a position [last]: two logits that lie closer than this are a tie to float32.
        """
        asked = torch.tensor([token_ids])
        single, double = (model(asked).logits[0, -last:] for model in (self._single, self._double))
        return double, (single.double() - double).abs().max(-1).values


def _norm(module: Any, arguments: tuple[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
    """In the type of its input; transformers computes norms in float32, whatever the model's type is."""
    (hidden,) = arguments
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return module.weight * hidden * torch.rsqrt(variance + module.variance_epsilon)


def judge(exact: Exact, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    """Indices of ``tokens`` that float64 does not choose and float32 can tell from its choice: "wrong".

    "undecided": those at which the two best logits are a tie to float32, with their distance and the rounding.
    """
    logits, rounding = exact.logits([*prompt, *tokens[:-1]], len(tokens))
    best = logits.topk(2).values
    apart = best[:, 0] - best[:, 1]
    below = best[:, 0] - logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return {
        "wrong": (below >= rounding.clamp(min=1e-300)).nonzero()[:, 0].tolist(),
        "undecided": [
            {"token": index, "apart": float(apart[index]), "rounding": float(rounding[index])}
            for index in (apart < rounding).nonzero()[:, 0].tolist()
        ],
    }


def main(folder: Path, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is found of each answer."""
    exact, tokenizer = Exact(folder), AutoTokenizer.from_pretrained(folder)

    def ids(prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return list(tokenizer(prompt)["input_ids"])
        if isinstance(prompt, dict):
            chat = [{"role": "user", "content": prompt["chat"]}]
            return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        return list(prompt)

    prompts = [ids(answer["prompt"]) for answer in answers]
    found = [judge(exact, prompt, answer["tokens"]) for prompt, answer in zip(prompts, answers, strict=True)]
    return [each | {"prompt_tokens": len(prompt)} for each, prompt in zip(found, prompts, strict=True)]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
