"""How inputs reach the ranks, and which way the entry rank chooses. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

MIB: Final = 1024 * 1024
DEFAULT_SIZE_THRESHOLD_BYTES: Final = 10 * MIB


class Mode(StrEnum):
    """What crosses between ranks, and whether the thread that submits waits for it."""

    SYNC = "sync"
    """The entry rank materialises, then sends the object; the submitting thread does both."""
    ASYNC = "async"
    """The same, in the background."""
    DELAYED = "delayed"
    """The submitting thread sends the raw inputs; each rank materialises where it needs them."""
    COMBINED = "combined"
    """The raw inputs are sent, and materialised on each rank, in the background."""
    AUTO = "auto"
    """The entry rank chooses one of the others for each request."""
    NONE = "none"
    """The request has no inputs. Only in a stamp."""

    @property
    def sends_raw(self) -> bool:
        """Whether each rank materialises for itself."""
        return self in (Mode.DELAYED, Mode.COMBINED)

    @property
    def in_background(self) -> bool:
        """Whether the submitting thread does nothing of it."""
        return self in (Mode.ASYNC, Mode.COMBINED)


class Stamp(msgspec.Struct, frozen=True):
    """What the entry rank writes into the request that all ranks get: how and under which number its inputs come."""

    request_id: str
    sequence: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class AutoRule:
    """When the mode ``auto`` does what.

    ``cores``: that the ranks of the group may use together.
    """

    size_threshold_bytes: int = DEFAULT_SIZE_THRESHOLD_BYTES
    cores: int = 1

    def choose(self, raw_bytes: int, concurrent: int, world_size: int) -> Mode:
        """The mode of a request with ``raw_bytes`` of raw inputs beside ``concurrent`` other undecided ones.

        Materialising on every rank costs ``world_size`` times the CPU time and saves sending the object, which is
        larger than the raw inputs. It pays where the ranks have cores to spare.
        """
        if raw_bytes > self.size_threshold_bytes and (concurrent + 1) * world_size <= self.cores:
            return Mode.COMBINED
        return Mode.ASYNC
