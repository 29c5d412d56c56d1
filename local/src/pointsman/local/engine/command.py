"""``pointsman local engine`` and ``pointsman local model``: what a worker on this computer needs, made beforehand."""

import sys
from typing import Final

from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import RECIPES, ModelSize, ensure_model
from pointsman.process.arguments import CommandParser

_MODEL_EPILOG: Final = """
examples:
  pointsman local model                  the smallest one, for tests
  pointsman local model --size small     26 M parameters, for latencies
"""

_ENGINE_EPILOG: Final = """
example:
  pointsman local engine    so that the first cluster with workers starts at once; prints the path of its python
"""


def engine(argv: list[str]) -> int:
    """Install the engine environment (vLLM for CPU) if this computer has none; prints its python."""
    CommandParser(
        prog="pointsman local engine",
        description=engine.__doc__,
        epilog=_ENGINE_EPILOG,
    ).parse_args(argv)
    print(ensure_engine_environment(report=_tell).python)
    return 0


def model(argv: list[str]) -> int:
    """Make a small random Llama whose answers depend on the whole context; prints its folder."""
    parser = CommandParser(
        prog="pointsman local model",
        description=model.__doc__,
        epilog=_MODEL_EPILOG,
    )
    parser.add_argument("--size", type=ModelSize, choices=list(RECIPES), default=ModelSize.TINY, help="default: tiny")
    options = parser.parse_args(argv)
    print(ensure_model(ensure_engine_environment(report=_tell), options.size, report=_tell))
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
