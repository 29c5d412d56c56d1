"""``pointsman local binaries``: find, build or fetch the programs, and say where they are."""

import sys
from typing import Final

from pointsman.local.binaries import CONTROL_PLANE, TOOLS, ensure_all, find
from pointsman.local.errors import NoBinary
from pointsman.process.arguments import CommandParser

_EPILOG: Final = """
examples:
  pointsman local binaries               build the programs of the control plane
  pointsman local binaries helm kwok     build these
  pointsman local binaries --list        list the binaries that exist, build nothing
"""


def main(argv: list[str]) -> int:
    """Find, build or fetch programs; prints one line ``name  path`` each."""
    parser = CommandParser(
        prog="pointsman local binaries",
        description="Find the programs of the embedded cluster and the tests, or build them from pinned Go modules.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of: {', '.join(TOOLS)} (default: the control plane's)"
    )
    parser.add_argument("--list", action="store_true", help="only list the binaries that exist")
    options = parser.parse_args(argv)
    try:
        if options.list:
            for name in options.names or TOOLS:
                found = find(name)
                print(f"{name:<24} {found.path or 'not there yet'}")
                for reason in found.passed_over:
                    print(f"{'':<24} ({reason})")
            return 0
        paths = ensure_all(options.names or CONTROL_PLANE, _tell)
    except NoBinary as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    for name, path in paths.items():
        print(f"{name:<24} {path}")
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
