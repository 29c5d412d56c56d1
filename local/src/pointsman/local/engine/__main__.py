"""``python -m pointsman.local.engine``: install the engine environment."""

import argparse
import sys

from pointsman.local.engine.environment import EngineEnvironmentError, ensure_engine_environment


def main(argv: list[str] | None = None) -> int:
    """Install the engine environment (vLLM for CPU) if this computer lacks it, and print its interpreter."""
    argparse.ArgumentParser(prog="pointsman engine", description=main.__doc__).parse_args(argv)
    try:
        environment = ensure_engine_environment(report=lambda line: print(line, file=sys.stderr, flush=True))
    except EngineEnvironmentError as error:
        print(f"pointsman engine: {error}", file=sys.stderr)
        return 1
    print(environment.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
