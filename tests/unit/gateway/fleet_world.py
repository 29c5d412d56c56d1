"""A fleet whose workers and load a test sets."""

from random import Random

from pointsman.api.protocol.control import ModelInfo
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.processor import Model
from pointsman.gateway.types import UNKNOWN_LOAD, Discovered, Worker, WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes

INFO = ModelInfo(served_name="m", max_model_len=100, block_size=4, files=(), digest="d")


MODEL = Model(INFO, None, text_verified=True, chat_verified=True)


class World:
    """A fleet with a clock that a test moves."""

    def __init__(self, *names: str, prefill: str | None = None, known: bool = True) -> None:
        self.now_s = 100.0
        self.fleet = Fleet(
            clock=lambda: self.now_s,
            rng=Random(3),
            cost=token_load,
            index=KvIndex(),
            load_of=lambda _worker: UNKNOWN_LOAD,
            suspect_seconds=2.0,
        )
        self.discover(*names, prefill=prefill)
        if known:
            for name in names:
                self.fleet.set_model(WorkerKey(name), MODEL)

    def discover(self, *names: str, prefill: str | None = None) -> None:
        found = [Worker(WorkerKey(n), n, f"http://{n}", Role.DECODE) for n in names]
        if prefill is not None:
            found.append(Worker(WorkerKey(prefill), prefill, f"http://{prefill}", Role.PREFILL))
        self.fleet.apply(Discovered(tuple(found)))

    def pick(self, *avoid: str, tokens: tuple[int, ...] = (), digest: str | None = None) -> Pick | None:
        chain = chained_block_hashes(tokens, 4)
        return self.fleet.pick(
            prompt_tokens=max(len(tokens), 1), chain=chain, digest=digest, avoid={WorkerKey(a) for a in avoid}
        )

    def reachable(self, *avoid: str) -> set[str]:
        names = set()
        for _ in range(30):
            pick = self.pick(*avoid)
            if pick is not None:
                pick.entry.end()
                names.add(pick.worker.name)
        return names
