"""A member that dies in the middle of an iteration, on real processes. Prints JSON.

python -m engine.elastic.deaths MODEL_FOLDER WIDTH TRANSPORT
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from engine.elastic.members import Members
from pointsman.serving.elastic.iterations import Move, Prompt, Step
from pointsman.workers.elastic.engine.meeting import GroupBroken

SLOTS = 9000
LONG = 2500  # takes most of a second: the death comes in the middle


def main(folder: Path, width: int, transport: str) -> list[dict[str, Any]]:
    """A death while the group forms, one in a prefill, one in a decode step, a member that stands still in a prefill,
    and keeps its connections, and a death of one that takes KV."""
    phases = ("joining", "prefill", "decode", "frozen")
    return [*(death(folder, width, transport, phase) for phase in phases), death_of_a_taker(folder, width, transport)]


def death(folder: Path, width: int, transport: str, phase: str) -> dict[str, Any]:
    """Kill the last of three; the other two must notice, free what they have, and do the same work alone."""
    rng = random.Random(phase)
    prompts = [
        Prompt(f"r{number}", tuple(rng.randrange(90) for _ in range(LONG)), ((0, LONG - 900), (1, 500), (2, 400)))
        for number in range(3)
    ]
    members = Members(folder, 3, SLOTS, width, transport=transport)
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
        elif phase in ("prefill", "frozen"):
            for prompt in prompts:
                members.asked("release", prompt.request)
        members.begin([0, 1, 2], () if steps else prompts, steps)
        if phase in ("prefill", "frozen"):
            time.sleep(0.2)  # of the second that it takes; the other two are over sooner than anybody could wait
        if phase == "frozen":
            assert members.all[2].process.pid is not None
            os.kill(members.all[2].process.pid, signal.SIGSTOP)
        else:
            members.all[2].kill()
        since_s = time.monotonic()
        noticed = sum(broken(members, number) for number in (0, 1))
        noticed_s = time.monotonic() - since_s
        last = members.all.pop()
        if phase == "frozen":
            last.kill()
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


def death_of_a_taker(folder: Path, width: int, transport: str) -> dict[str, Any]:
    """Kill the second of two that takes over KV; ``moved_bytes``: what the first one says that it sent."""
    members = Members(folder, 2, SLOTS, width, transport=transport)
    try:
        members.iterate([0], [Prompt("r", tuple(range(90)), ((0, 90),))], ())
        members.all[1].ask("die", 1, False)
        members.all[1].answer()
        members.begin([0, 1], (), (), [Move("r", 0, 1, 90)])
        since_s = time.monotonic()
        noticed = broken(members, 0)
        noticed_s = time.monotonic() - since_s
        members.all.pop()
        (free,), (moved,) = members.asked("free"), members.asked("moved")
        return {
            "phase": "taking", "noticed_by": int(noticed), "noticed_s": noticed_s, "slots_leaked": SLOTS - free,
            "moved_bytes": moved,
        }  # fmt: skip
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
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
