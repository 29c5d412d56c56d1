"""One replay of each example policy: ``make replays`` writes docs/reports/replays (reports, pictures, figures)."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.pages import REPORTS, render
from pointsman.planner.replay.options import parse
from pointsman.planner.replay.page import page
from pointsman.planner.replay.pictures import picture
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.replay.run import load, replay

FOLDER: Final = REPORTS / "replays"
_AZURE: Final = "bench/data/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.xz"
_MOONCAKE: Final = "bench/data/mooncake/conversation_trace.jsonl.xz"
REPLAYS: Final[dict[str, tuple[str, ...]]] = {
    "chat": ("--workers", "1P3D", "--trace", _AZURE),
    "code": ("--trace", "onoff:low=3,high=40,output_tokens=60"),
    "long-context": ("--workers", "3P2D", "--trace", _MOONCAKE),
    "batch": ("--workers", "4P2D", "--trace", "mixshift:rate=10,later_rate=30"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m bench.replays", description=__doc__)
    parser.add_argument("policy", nargs="*", help=f"of {', '.join(REPLAYS)}; all of them if none is named")
    named = parser.parse_args(arguments).policy
    if unknown := sorted({*named} - {*REPLAYS}):
        parser.error(f"there is no example policy {', '.join(unknown)}; there are {', '.join(REPLAYS)}")
    kept = FOLDER / "figures.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in named or REPLAYS:
        made = _document(name)
        (FOLDER / f"{name}.html").write_text(page(made), encoding="utf-8")
        (FOLDER / f"{name}.svg").write_text(picture(made, f"{name} on {made['trace']['name']}"), encoding="utf-8")
        found[name] = {key: made[key] for key in ("figures", "objectives")}
        print(f"replayed {name}")
    kept.write_text(json.dumps({name: found[name] for name in REPLAYS if name in found}, indent=1) + "\n")
    (FOLDER / "README.md").write_text(readme(found))
    return 0


def readme(made: Mapping[str, Any]) -> str:
    """The page of all replays, by what is kept of each."""
    names = [name for name in REPLAYS if name in made]
    replays = [(name, _command(name), made[name]["figures"], made[name]["objectives"]) for name in names]
    return render("replays.md", replays=replays)


def _document(name: str) -> dict[str, Any]:
    """What ``--json`` would write. The command in it names no output: a reader has no use for where that was."""
    options = parse(_arguments(name))
    return replay(options, load_policy(options.policy), load(options), _command(name), lambda now_s: None).document


def _command(name: str) -> str:
    return shlex.join(["pointsman", "replay", *_arguments(name)])


def _arguments(name: str) -> list[str]:
    return ["--policy", f"examples/policies/{name}.yaml", *REPLAYS[name]]


if __name__ == "__main__":
    sys.exit(main())
