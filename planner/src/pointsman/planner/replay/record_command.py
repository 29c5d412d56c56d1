"""``pointsman record``: a live service's history in Prometheus, as a trace for ``pointsman replay``."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pointsman.api.credentials import mask_credentials
from pointsman.planner.core.metrics.prometheus_vector import NAME
from pointsman.planner.errors import PlannerError, TraceError
from pointsman.planner.prometheus import Prometheus
from pointsman.planner.replay.progress import bar
from pointsman.planner.replay.prometheus_history import Scrapes, by_pod
from pointsman.planner.replay.record_access import REMEDIES, access, add_options
from pointsman.planner.replay.recording import FAMILIES, recording
from pointsman.planner.replay.trace_files import write_trace
from pointsman.process.arguments import CommandParser, output_file

CHUNK_S: Final = 1800.0  # of history in one query: a day at once would be tens of megabytes
TIMEOUT_S: Final = 30.0
EXIT_INTERRUPTED: Final = 130
_DESCRIPTION: Final = """\
Turn the history of a live service in Prometheus into a trace: as many requests as arrived, when they did (to the
scrape), with prompts and answers of their lengths (to the bucket). Replay it with 'pointsman replay --trace FILE'.
"""
_EPILOG: Final = """\
examples:
  pointsman record --prometheus http://localhost:9090 --service chat --last 1h --out tuesday.jsonl
  pointsman record --prometheus http://prometheus.monitoring.svc:9090 --namespace serving --service chat \\
                   --from 2026-11-20T09:00+01:00 --to 2026-11-20T11:00+01:00 --out peak.jsonl
  pointsman record --prometheus https://prometheus.example.com --token-file token --ca-file ca.crt --service chat \\
                   --last 1d --out day.jsonl
"""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def main(argv: list[str]) -> int:
    """Record a live service's history in Prometheus as a trace for replay."""
    options = parse(argv)
    end_s = options.to or time.time()
    begin_s = options.begin or end_s - options.last
    if begin_s >= end_s:
        begin, end = _stamp(begin_s), _stamp(end_s)
        print(f"pointsman record: --from is {begin}; a time before {end} (--to) is needed", file=sys.stderr)
        return 2
    try:
        server = Prometheus(options.prometheus, TIMEOUT_S, access=access(options), remedies=REMEDIES)
        selector = _selector(options.namespace, options.service)
        with bar(mask_credentials(f"{options.service} from {options.prometheus}"), end_s - begin_s) as progress:
            gateways = _history(server, selector, begin_s, end_s, progress)
        made = recording(options.service, gateways, options.seed)
    except PlannerError as error:
        print(f"pointsman record: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pointsman record: interrupted, nothing is written", file=sys.stderr)
        return EXIT_INTERRUPTED
    recorded = {"recorded_from": _stamp(made.begin_s), "recorded_to": _stamp(made.end_s), "notes": list(made.notes)}
    try:
        write_trace(options.out, made.trace, {**recorded, "service": options.service, "seed": options.seed})
    except OSError as error:
        print(f"pointsman record: {options.out}: it cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{len(made.trace)} requests in {made.trace.duration_s / 60:.1f} min → {options.out}")
    for note in made.notes:
        print(f"  {note}")
    return 0


def _history(
    server: Prometheus, selector: str, begin_s: float, end_s: float, progress: Callable[[float], None]
) -> dict[str, Scrapes]:
    """Raw samples of the gateways, chunk by chunk; ``progress`` is told the seconds of history that were read.

    Raises PrometheusFailed, and TraceError if gateways look alike.
    """
    series: list[Mapping[str, Any]] = []
    at_s = begin_s
    while at_s < end_s:
        until_s = min(at_s + CHUNK_S, end_s)
        series += server.samples_now(f"{selector}[{until_s - at_s:.0f}s]", until_s)
        at_s = until_s
        progress(at_s - begin_s)
    server.close()
    _refuse_nameless(series)
    return by_pod(series)


def _refuse_nameless(series: Sequence[Mapping[str, Any]]) -> None:
    """Without the label ``pod`` two targets may be two gateways, or one that two jobs scrape."""
    targets = {tuple(made["metric"].get(label, "") for label in ("pod", "job", "instance")) for made in series}
    nameless = sorted(target for target in targets if not target[0])
    if nameless and len(targets) > 1:
        _, job, instance = nameless[0]
        raise TraceError(
            f"{len(nameless)} of {len(targets)} targets have no label 'pod' (e.g. job '{job}', instance "
            f"'{instance}'), which identifies the gateway. Without it requests would be lost or counted "
            "twice. Scrape them with that label, as the chart's PodMonitors do"
        )


def _selector(namespace: str | None, service: str) -> str:
    names = "|".join(re.escape(family) for family in FAMILIES)
    where = f',namespace="{namespace}"' if namespace else ""
    return f'{{{NAME}=~"{names}",service="{service}"{where}}}'


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="seconds")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="pointsman record",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add(
        "--prometheus",
        required=True,
        type=_url,
        metavar="URL",
        help="address of the Prometheus that scrapes the gateways",
    )
    add_options(parser)
    add("--service", required=True, type=_name, metavar="NAME", help="the LLMService or ElasticGroup")
    add("-n", "--namespace", type=_name, metavar="NAME", help="its namespace (default: any)")
    begin = parser.add_mutually_exclusive_group().add_argument
    begin("--last", type=_duration, default=3600.0, metavar="TIME", help="e.g. 90s, 15m, 1h, 2d (default: 1h)")
    begin("--from", dest="begin", type=_moment, metavar="TIME", help="instead of --last, e.g. 2026-11-20T09:00+01:00")
    add("--to", type=_moment, metavar="TIME", help="(default: now)")
    add("--out", required=True, type=output_file, metavar="FILE", help="where the trace goes")
    add("--seed", type=int, default=1, metavar="N", help="of the values drawn within buckets (default: 1)")
    return parser.parse_args(argv)


def _url(text: str) -> str:
    if not re.match("https?://[^ /?#]", text, re.IGNORECASE):
        host = text.rpartition("://")[2].lstrip("/") or "localhost:9090"
        raise argparse.ArgumentTypeError(f"a URL with http:// or https:// is needed, e.g. http://{host}")
    return text


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no name of a Kubernetes object")
    return text


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no time such as 90s, 15m, 1h or 2d")
    return float(found[1]) * _UNITS[found[2]]


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no moment such as 2026-11-20T09:00+01:00") from None
