"""Whether NCCL can connect the members of a group, from what each of them publishes. Pure.

All members decide from the same cards, so all choose the same.
"""

import struct
from collections.abc import Sequence
from typing import Final

_CARD: Final = struct.Struct("!3H16s")
CARD_BYTES: Final = _CARD.size
NO_CARD: Final = bytes(CARD_BYTES)
"""Of a member without a GPU, without NCCL in its torch, or whose settings exclude NCCL."""


def card(nccl_version: tuple[int, int, int], gpu: bytes) -> bytes:
    """What a member publishes; ``gpu``: the 16 bytes of its UUID."""
    return _CARD.pack(*nccl_version, gpu)


def nccl_connects(cards: Sequence[bytes]) -> bool:
    """Whether all members have one version of NCCL, and each a GPU of its own, as NCCL demands."""
    published = [_CARD.unpack(each) for each in cards]
    versions = {tuple(version) for *version, _ in published}
    gpus = {gpu for *_, gpu in published}
    return NO_CARD not in cards and len(versions) == 1 and len(gpus) == len(cards)
