"""A member that dies in the middle of an iteration, on real processes. Prints JSON.

python -m engine.elastic.deaths MODEL_FOLDER WIDTH
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from engine.elastic.members import Members
from pointsman.workers.elastic.engine.groups import GroupBroken
from pointsman.workers.elastic.engine.iterations import Prompt, Step

SLOTS = 9000
LONG = 2500  # takes most of a second: the death comes in the middle


def main(folder: Path, width: int) -> list[dict[str, Any]]:
    """A death while the group forms, one in a prefill, and one in a decode step."""
    return [death(folder, width, phase) for phase in ("joining", "prefill", "decode")]


def death(folder: Path, width: int, phase: str) -> dict[str, Any]:
    """Kill the last of three; the other two must notice, free what they have, and do the same work alone."""
    rng = random.Random(phase)
    prompts = [
        Prompt(f"r{number}", tuple(rng.randrange(90) for _ in range(LONG)), ((0, LONG - 900), (1, 500), (2, 400)))
        for number in range(3)
    ]
    members = Members(folder, 3, SLOTS, width)
    try:
        alone = {}
        for number, prompt in enumerate(prompts):
            whole = Prompt(f"alone{number}", prompt.token_ids, ((0, LONG),))
            alone[prompt.request] = members.iterate([0], [whole], ())[f"alone{number}"]
            members.asked("release", f"alone{number}")
        steps: list[Step] = []
        if phase != "joining":
            tokens = members.iterate([0, 1, 2], prompts, ())
        if phase == "decode":
            steps = [
                Step(request, token, LONG, number, (0, 1, 2)) for number, (request, token) in enumerate(tokens.items())
            ]
        elif phase == "prefill":
            for prompt in prompts:
                members.asked("release", prompt.request)
        members.begin([0, 1, 2], () if steps else prompts, steps)
        if phase == "prefill":
            time.sleep(0.2)  # of the second that it takes; the other two are over sooner than anybody could wait
        members.all[2].kill()
        since_s = time.monotonic()
        noticed = sum(broken(members, number) for number in (0, 1))
        noticed_s = time.monotonic() - since_s
        members.all.pop()
        for prompt in prompts:
            members.asked("release", prompt.request)
        free = members.asked("free")
        again = [Prompt(each.request, each.token_ids, ((1, LONG - 900), (0, 900))) for each in prompts]
        return {
            "phase": phase,
            "noticed_by": noticed,
            "noticed_s": noticed_s,
            "slots_leaked": sum(SLOTS - each for each in free),
            "same_tokens_after": members.iterate([0, 1], again, ()) == alone,
        }
    finally:
        members.close()


def broken(members: Members, number: int) -> bool:
    """Whether this member says that the group broke; one may have been through before the death."""
    try:
        members.all[number].answer()
    except GroupBroken:
        return True
    return False


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
