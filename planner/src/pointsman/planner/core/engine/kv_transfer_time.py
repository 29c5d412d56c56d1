"""How long KV takes from a prefill to a decode worker, from what the engines measure of each pull.

A pull that shares the network with others takes longer, so the mean says how busy it is rather than what it can do. The
capacity is what the quickest windows show, as with a link's delay in congestion control (BBR: Cardwell et al.,
*Communications of the ACM* 60(2), 2017: the minimum over a while is the path's, all above it is queue).
"""

from dataclasses import dataclass
from typing import Final

KEPT: Final = 120  # windows


@dataclass(frozen=True, slots=True)
class Transfers:
    """Seconds a token of the last windows in which enough was pulled."""

    windows: tuple[float, ...] = ()

    def observe(self, seconds: float | None, tokens: float | None) -> "Transfers":
        """Take a window: seconds that all pulls took together, and the tokens they brought; None: not known."""
        if seconds is None or tokens is None or tokens < 256 or seconds <= 0:  # fewer tokens say too little
            return self
        return Transfers((*self.windows[1 - KEPT :], seconds / tokens))

    @property
    def s_per_token(self) -> float:
        """What one token takes while nothing else is pulled; 0 until something was, since most networks are quick."""
        if not self.windows:
            return 0.0
        return sorted(self.windows)[int(0.1 * (len(self.windows) - 1))]
