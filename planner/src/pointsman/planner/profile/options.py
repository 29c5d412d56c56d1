"""What ``pointsman profile`` is told."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pointsman.process.arguments import CommandParser, output_file

_DESCRIPTION: Final = """\
Measure one live vLLM worker and write its performance table: prefill time by prompt and cached prefix, decode step by
batch and context, KV capacity, and the time of a KV transfer from a prefill worker. The worker should get no other
requests. Measurements that other requests disturb are discarded; if there are many, the profile ends.
"""
_EPILOG: Final = """\
examples:
  kubectl port-forward pod/chat-1e22545b2-0 8000 &
  pointsman profile --url http://localhost:8000 --gpu h100_sxm --out chat.json
  pointsman profile --service chat --namespace serving --gpu h100_sxm --out chat.json   # in the cluster
  pointsman profile --url http://10.0.3.7:8000 --gpu h100_sxm --tp 4 --minutes 15 --out big.json \\
                    --max-prompt-tokens 32768 --max-batch 256

then:
  pointsman replay --trace step --policy examples/policies/chat.yaml --table chat.json
  kubectl create configmap chat-table --from-file=table.json=chat.json         # and in the policy:
                                              performance: {configMap: {name: chat-table}}

exit status: 0 written, 2 something given cannot be used or the worker cannot be profiled
"""
LEAST_MINUTES: Final = 0.1
MOST_MINUTES: Final = 240.0


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of one command. ``model`` and ``gpu`` only name the table."""

    url: str | None
    out: Path
    gpu: str
    model: str | None = None
    served_model: str | None = None
    tp: int = 1
    minutes: float = 5.0
    most_prompt_tokens: int = 16_384
    most_batch: int = 128
    kv_bytes_per_token: int | None = None
    seed: int | None = None
    service: str | None = None  # where no url is given
    namespace: str | None = None  # None: that of the kubeconfig's context
    kubeconfig: Path | None = None


def parse(argv: list[str]) -> Options:
    """The options on a command line; exits with a usage message for a wrong one."""
    given = _parser().parse_args(argv)
    return Options(
        url=given.url, out=given.out, gpu=given.gpu, model=given.model, served_model=given.served_model, tp=given.tp,
        minutes=given.minutes, most_prompt_tokens=given.max_prompt_tokens, most_batch=given.max_batch,
        kv_bytes_per_token=given.kv_bytes_per_token, seed=given.seed, service=given.service,
        namespace=given.namespace, kubeconfig=given.kubeconfig,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pointsman profile",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--url", type=_url, metavar="URL", help="the worker's address, e.g. http://localhost:8000")
    which.add_argument(
        "--service", metavar="NAME", help="an LLMService: one of its decode workers, where pods can be reached"
    )
    add("-n", "--namespace", metavar="NAME", help="the service's (default: the context's, as for kubectl)")
    add("--kubeconfig", type=Path, metavar="FILE", help="(default: KUBECONFIG, ~/.kube/config, the pod's)")
    add("--out", required=True, type=output_file, metavar="FILE", help="where the table goes")
    add("--minutes", type=_minutes, default=5.0, metavar="M", help="longest duration (default: 5)")
    add("--served-model", metavar="NAME", help="where the worker serves several (default: the first it lists)")

    measured = parser.add_argument_group("measurements").add_argument
    measured(
        "--max-prompt-tokens",
        type=_whole(32),
        default=16_384,
        metavar="N",
        help="longest prompt and context, as far as the worker takes them (default: 16384)",
    )
    measured(
        "--max-batch",
        type=_whole(2),
        default=128,
        metavar="N",
        help="most sequences at once, as far as the worker runs them (default: 128)",
    )
    measured("--seed", type=int, metavar="N", help="of the prompts (default: another one every time)")

    table = parser.add_argument_group("the table").add_argument
    table("--gpu", default="unknown", metavar="NAME", help="its GPU, e.g. h100_sxm (default: unknown)")
    table("--model", metavar="NAME", help="e.g. meta-llama/Meta-Llama-3.1-8B (default: as it is served)")
    table("--tp", type=_whole(1), default=1, metavar="N", help="tensor-parallel size: GPUs of one worker (default: 1)")
    table(
        "--kv-bytes-per-token",
        type=_whole(1),
        metavar="N",
        help="where neither the worker's cache nor a transfer shows it",
    )
    return parser


# --- values; argparse shows the message of an ArgumentTypeError ---


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"'{text}' is no address such as http://localhost:8000")
    return text


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not LEAST_MINUTES <= value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of minutes from {LEAST_MINUTES:g} to {MOST_MINUTES:g}")
    return value


class _whole:  # noqa: N801 - used like the functions beside it
    def __init__(self, least: int) -> None:
        self._least = least

    def __call__(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < self._least:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number of {self._least} or more")
        return int(text)
