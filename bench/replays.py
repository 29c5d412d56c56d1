"""One replay of each example policy: ``make replays`` writes docs/reports/replays (reports, pictures, figures)."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.pages import REPORTS, render
from bench.rows import data, keep, kept, options
from pointsman.planner.replay.options import parse
from pointsman.planner.replay.page import page
from pointsman.planner.replay.pictures import picture
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.replay.run import load, replay

FOLDER: Final = REPORTS / "replays"
REPLAYS: Final[dict[str, list[str]]] = data("replays")


def main(argv: Sequence[str] | None = None) -> None:
    """Run them all, or those that are named."""
    asked = options("make replays", __doc__, argv, policies=((*REPLAYS,), "that are replayed"))
    found: dict[str, Any] = kept(FOLDER / "figures.json") or {}
    for name in asked.policies:
        at = parse(_arguments(name))
        # The command in it names no output: a reader has no use for where that was.
        made = replay(at, load_policy(at.policy), load(at), _command(name), lambda now_s: None).document
        (FOLDER / f"{name}.html").write_text(page(made), encoding="utf-8")
        (FOLDER / f"{name}.svg").write_text(picture(made, f"{name} on {made['trace']['name']}"), encoding="utf-8")
        found[name] = {key: made[key] for key in ("figures", "objectives")}
        print(f"replayed {name}")
    keep(FOLDER / "figures.json", {name: found[name] for name in REPLAYS if name in found})
    (FOLDER / "README.md").write_text(readme(found))


def readme(made: Mapping[str, Any]) -> str:
    """The page of all replays, by what is kept of each."""
    names = [name for name in REPLAYS if name in made]
    replays = [(name, _command(name), made[name]["figures"], made[name]["objectives"]) for name in names]
    return render("replays.md", replays=replays)


def _command(name: str) -> str:
    return shlex.join(["pointsman", "replay", *_arguments(name)])


def _arguments(name: str) -> list[str]:
    return ["--policy", f"examples/policies/{name}.yaml", *REPLAYS[name]]


if __name__ == "__main__":
    main()
