"""What an elastic group's manager and its instances say to each other: MessagePack, one message a WebSocket frame.

The manager connects to each instance. An instance does what it is told in the order in which it is told, so a manager
that tells the members of two groups in the same order never makes them wait for each other.
"""

from typing import Final

import msgspec

from pointsman.serving.elastic.iterations import Move, Prompt, Sampled, Sampling, Step

LINK_PATH: Final = "/pointsman/v1/elastic/link"
MANAGER_SINCE: Final = "X-Pointsman-Manager-Since"
"""Header of the link: when the manager was started, Unix seconds. An instance keeps the newer of two."""
HEARTBEAT_SECONDS: Final = 1.0
"""A link that is silent for one and a half times as long is broken: its instance is taken for dead."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message, from the instance. ``boot``: another one after each start of the process."""

    name: str
    boot: str
    store: str  # host:port, where groups that it leads meet
    slots: int
    held: dict[str, int]  # tokens of KV that each request has here, from an earlier manager


class Iterate(msgspec.Struct, frozen=True, tag="iterate"):
    """Compute one iteration with ``members`` (names; the first one's ``store`` is where they meet)."""

    number: int
    epoch: str
    members: tuple[str, ...]
    store: str
    prompts: tuple[Prompt, ...] = ()
    steps: tuple[Step, ...] = ()
    moves: tuple[Move, ...] = ()
    sampling: dict[str, Sampling] = {}  # of the requests that get a token


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Free what these requests have."""

    requests: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """An iteration came to its end here; ``tokens`` of the requests that this member masters.

    ``moved_bytes``: of KV that this instance sent to others beyond what attention needs. 0 unless the iteration has
    moves; None: an instance of an earlier version does not count them.
    """

    number: int
    tokens: dict[str, Sampled]
    seconds: float
    moved_bytes: int | None = None


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """An iteration ended early here. It left no KV; what its prompts and moves had before is freed here too.

    ``moved_bytes``: as of Done, of an iteration of moves; 0 for another, of which it is not known how much attention
    needed; None: an instance of an earlier version.
    """

    number: int
    why: str
    moved_bytes: int | None = None


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The instance is told to stop: it is to hand over what it has, and waits for ``Dismiss``."""


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss"):
    """An instance that leaves holds nothing any more, and may stop."""


ToInstance = Iterate | Release | Dismiss
FromInstance = Hello | Done | Broken | Leaving

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_instance: Final = msgspec.msgpack.Decoder(ToInstance).decode
decode_from_instance: Final = msgspec.msgpack.Decoder(FromInstance).decode
