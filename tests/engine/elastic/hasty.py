"""What members do whose transfers begin one by one, as they may with gloo, over a stand-in for NCCL. Prints JSON.

python -m engine.elastic.hasty MODEL_FOLDER
"""

import json
import sys
from pathlib import Path

from engine.elastic.members import Members
from pointsman.serving.elastic.iterations import Move, Prompt, Step

LIMIT_SECONDS = 3.0
TOKENS = tuple(range(5, 25))


def main(folder: Path) -> dict[str, dict[str, str]]:
    """By stand-in and what two members do: whether it ends."""
    return {
        transport: {work: outcome(folder, transport, work) for work in works}
        for transport, works in {"hasty": ("prefill", "decode"), "strict": ("prefill", "decode", "move")}.items()
    }


def outcome(folder: Path, transport: str, work: str) -> str:
    """Both members have something for the other one."""
    members = Members(folder, 2, 200, transport=transport)
    try:
        prompts = [Prompt(f"r{number}", TOKENS, ((0, 20),)) for number in (0, 1)]
        if work == "prefill":
            members.begin([0, 1], prompts, ())
        else:
            for number in (0, 1):  # each has one, computed alone
                members.iterate([number], [prompts[number]], ())
            steps = [Step(f"r{number}", 7, 20, 1 - number, (number,)) for number in (0, 1)]
            moves = [Move(f"r{number}", number, 1 - number, 20) for number in (0, 1)]
            members.begin([0, 1], (), *((steps,) if work == "decode" else ((), moves)))
        try:
            for member in members.all:
                member.answer(LIMIT_SECONDS)
        except TimeoutError:
            return "hangs"
        return "ends"
    finally:
        members.close()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
