"""``make messages``: every text that a user reads, one line each, with its faults."""

import sys

from messages.found import all_messages
from messages.style import faults


def main() -> int:
    """Print them; 1 if one has a fault."""
    found = all_messages()
    wrong = 0
    for each in found:
        problems = list(faults(each.text, each.kind))
        wrong += bool(problems)
        line = " ".join(each.text.split())
        print(f"{each.kind}\t{each.where}\t{line}" + "".join(f"\n    fault: {problem}" for problem in problems))
    print(f"{len(found)} messages, {wrong} with faults", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
