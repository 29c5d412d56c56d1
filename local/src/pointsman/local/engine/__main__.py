"""``python -m pointsman.local.engine``: the engine environment and the models made on the spot."""

import argparse
import sys

from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.errors import EngineEnvironmentError


def main(argv: list[str] | None = None) -> int:
    """Install the engine environment (vLLM for CPU) or make a test model; prints the path of what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m pointsman.local.engine", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="install the engine environment if this computer lacks it; prints its python")
    model = commands.add_parser("model", help="make a small random Llama; prints its folder")
    model.add_argument("--size", type=ModelSize, choices=list(ModelSize), default=ModelSize.TINY)
    options = parser.parse_args(argv)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        environment = ensure_engine_environment(report=report)
        path = (
            environment.python
            if options.command == "install"
            else ensure_model(environment, options.size, report=report)
        )
    except EngineEnvironmentError as error:
        print(f"pointsman engine: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
