"""How the members of a group connect and whether they watch each other, from what each of them publishes. Pure.

All members decide from the same cards, so all choose the same.
"""

import struct
from collections.abc import Sequence
from typing import Final

_CARD: Final = struct.Struct("!3H16s")
CARD_BYTES: Final = _CARD.size
_BEATS: Final = 0x8000
"""In the first number of a card: this member sends beats. Those of earlier versions do not; NCCL connects neither."""
NO_CARD: Final = _CARD.pack(_BEATS, 0, 0, bytes(16))
"""Of a member without a GPU, without NCCL in its torch, or whose settings exclude NCCL."""


def card(nccl_version: tuple[int, int, int], gpu: bytes) -> bytes:
    """What a member publishes; ``gpu``: the 16 bytes of its UUID."""
    major, minor, patch = nccl_version
    return _CARD.pack(_BEATS | major, minor, patch, gpu)


def all_beat(cards: Sequence[bytes]) -> bool:
    """Whether all members send beats, so that one from which none come is gone."""
    return all(_CARD.unpack(each)[0] & _BEATS for each in cards)


def nccl_connects(cards: Sequence[bytes]) -> bool:
    """Whether all members have one version of NCCL, and each a GPU of its own, as NCCL demands."""
    published = [_CARD.unpack(each) for each in cards]
    versions = {tuple(version) for *version, _ in published}
    gpus = {gpu for *_, gpu in published}
    return NO_CARD not in cards and len(versions) == 1 and len(gpus) == len(cards)
