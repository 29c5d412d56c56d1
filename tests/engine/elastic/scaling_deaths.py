"""An instance that is killed while its group shrinks or grows, at drawn points, on real processes. Prints JSON.

    python -m engine.elastic.scaling_deaths MODEL_FOLDER TRANSPORT HOW SEED ...

``TRANSPORT``: see `Members`. ``HOW``: "killed", or "stopped": the instance stands still and keeps its connections.
Each of three instances decodes a request. Then all three prefill a prompt whose KV only some of them are to keep
(down), or each joins as master of a request that another one holds (up). Meanwhile one of the three is killed, as
kill -9 does it, before or after it begins its n-th exchange with the others. The requests of the other two go on.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.elastic.members import Members
from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.meeting import GroupBroken

SIZE, SLOTS, PROMPT_TOKENS, ANSWER_TOKENS = 3, 400, 60, 5
EXCHANGES = 6  # of a member in an iteration: two in each of three layers
SHRINKING = "shrinking"
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@dataclass
class Request:
    """Its prompt, what it got so far, and the members that hold its KV."""

    prompt: list[int]
    answer: list[int] = field(default_factory=list)
    holders: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of them; the newest has no KV."""
        return (*self.prompt, *self.answer)


class Group:
    """Instances, and requests that they compute."""

    def __init__(self, members: Members, requests: dict[str, Request]) -> None:
        self.members = members
        self.requests = requests

    def prefill(self, names: Iterable[str], chosen: list[int], keeps: dict[str, int]) -> None:
        """By ``chosen``, each kept by one of them."""
        found = {name: self.requests[name] for name in names}
        prompts = [
            Prompt(name, of.tokens, ((chosen.index(keeps[name]), len(of.tokens)),)) for name, of in found.items()
        ]
        for name, token in self.members.iterate(chosen, prompts, ()).items():
            found[name].answer.append(token)
            found[name].holders = {keeps[name]}

    def steps(self, masters: dict[str, int], chosen: list[int]) -> list[Step]:
        """The next token of each request."""
        return [
            Step(
                name, of.answer[-1], len(of.tokens) - 1, chosen.index(master),
                tuple(chosen.index(holder) for holder in sorted(of.holders)),
            )
            for name, master in masters.items()
            for of in (self.requests[name],)
        ]  # fmt: skip

    def stepped(self, masters: dict[str, int], tokens: dict[str, int]) -> None:
        """These came of it."""
        for name, token in tokens.items():
            self.requests[name].answer.append(token)
            self.requests[name].holders.add(masters[name])

    def decode(self, masters: dict[str, int], chosen: list[int]) -> None:
        """One step of each request."""
        self.stepped(masters, self.members.iterate(chosen, (), self.steps(masters, chosen)))

    def tell(self, chosen: Iterable[int], what: str, *more: Any) -> list[Any]:
        """The same to some, and what they answer."""
        answers = []
        for number in chosen:
            self.members.all[number].ask(what, *more)
            answers.append(self.members.all[number].answer())
        return answers


def main(folder: Path, transport: str, how: str, seeds: list[int]) -> list[dict[str, Any]]:
    """What each death came to."""
    return [
        death(folder, transport, how, direction, random.Random(f"{seed}/{direction}"))
        | {"seed": seed, "direction": direction}
        for seed in seeds
        for direction in ("down", "up")
    ]


def death(folder: Path, transport: str, how: str, direction: str, rng: random.Random) -> dict[str, Any]:
    """One of three is killed; those that live answer all requests."""
    members = Members(folder, SIZE, SLOTS, transport=transport)
    try:
        names = [f"r{number}" for number in range(SIZE)]
        prompts = {name: [rng.randrange(90) for _ in range(PROMPT_TOKENS)] for name in (*names, SHRINKING)}
        alone = {name: answer_alone(members, prompt) for name, prompt in prompts.items()}
        group = Group(members, {name: Request(prompt) for name, prompt in prompts.items()})
        own = {name: number for number, name in enumerate(names)}
        everyone = list(range(SIZE))
        group.prefill(names, everyone, own)
        group.decode(own, everyone)
        dying = rng.randrange(SIZE)
        living = [number for number in everyone if number != dying]
        point = rng.randint(1, EXCHANGES), rng.random() < 0.5
        group.tell([dying], "die", *point, SIGNALS[how])
        masters = dict(own)
        if direction == "down":
            keepers = rng.sample(everyone, rng.choice((1, 2)))
            owners = tuple((number, PROMPT_TOKENS // len(keepers)) for number in keepers)
            members.begin(everyone, [Prompt(SHRINKING, tuple(prompts[SHRINKING]), owners)], ())
        else:
            shift = rng.choice((1, 2))
            masters = {name: (number + shift) % SIZE for name, number in own.items()}
            members.begin(everyone, (), group.steps(masters, everyone))
        tokens: dict[str, int] = {}
        noticed, began_s = 0, time.monotonic()
        for number in living:
            try:
                tokens |= members.all[number].answer()
            except GroupBroken:
                noticed += 1
        noticed_s = time.monotonic() - began_s
        if how == "stopped":
            members.all[dying].kill()
        members.all[dying].process.join(120)
        died = members.all[dying].process.exitcode == -signal.SIGKILL
        # As the manager's book: a step counts if its master came through, and the prompt is computed again.
        tokens.pop(SHRINKING, None)
        lost = [name for name in names if dying in group.requests[name].holders]
        group.stepped(masters, {name: token for name, token in tokens.items() if name not in lost})
        for name in (*lost, SHRINKING):
            group.tell(living, "release", name)
        going_on = [name for name in names if name not in lost]
        kept = sum(len(group.requests[name].tokens) - 1 for name in going_on)
        used = sum(SLOTS - free for free in group.tell(living, "free"))
        group.prefill((*lost, SHRINKING), living, dict.fromkeys((*lost, SHRINKING), rng.choice(living)))
        while late := [name for name, of in group.requests.items() if len(of.answer) < ANSWER_TOKENS]:
            group.decode({name: rng.choice(living) for name in late}, living)
        for name in group.requests:
            group.tell(living, "release", name)
        return {
            "killed": [dying, *point],
            "died": died,
            "noticed_by": noticed,
            "noticed_s": noticed_s,  # with the exchanges before the kill
            "recomputed": len(lost),
            "went_on": len(going_on),
            "slots_leaked": [used - kept, sum(SLOTS - free for free in group.tell(living, "free"))],
            "same_tokens": {name: of.answer for name, of in group.requests.items()} == alone,
            "other_tokens": {
                name: [of.answer, alone[name]] for name, of in group.requests.items() if of.answer != alone[name]
            },
        }
    finally:
        members.close()


def answer_alone(members: Members, prompt: list[int]) -> list[int]:
    """What the first instance alone answers."""
    group = Group(members, {"alone": Request(prompt)})
    group.prefill(["alone"], [0], {"alone": 0})
    while len(group.requests["alone"].answer) < ANSWER_TOKENS:
        group.decode({"alone": 0}, [0])
    group.tell([0], "release", "alone")
    return group.requests["alone"].answer


if __name__ == "__main__":
    folder, transport, how, *seeds = sys.argv[1:]
    print(json.dumps(main(Path(folder), transport, how, [int(seed) for seed in seeds])))
