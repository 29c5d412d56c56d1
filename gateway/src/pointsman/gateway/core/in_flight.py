"""How many requests a gateway has at one time, and how many bytes of them: a bound that needs no policy."""

from dataclasses import dataclass


@dataclass(slots=True)
class InFlightBound:
    """Counts of all requests between their arrival and their end, queued ones included."""

    max_requests: int
    max_bytes: int
    requests: int = 0
    bytes: int = 0

    def enter(self) -> "Place | None":
        """A place for one more request; None: there is none. Whoever got it gives it back with `Place.leave`."""
        if self.requests >= self.max_requests:
            return None
        self.requests += 1
        return Place(self)


@dataclass(slots=True)
class Place:
    """What one request takes of the bound."""

    _bound: InFlightBound
    _bytes: int = 0
    _left: bool = False

    def has_room_for(self, total_bytes: int) -> bool:
        """Whether the request could hold ``total_bytes`` now."""
        bound = self._bound
        return bound.bytes + total_bytes - self._bytes <= bound.max_bytes or bound.bytes <= self._bytes

    def take(self, total_bytes: int) -> bool:
        """The request holds ``total_bytes`` now (never less than before). False: there is no room for them.

        A request that is alone always has room, or one of the largest size could never be served.
        """
        more = total_bytes - self._bytes
        if more <= 0:
            return True
        if not self.has_room_for(total_bytes):
            return False
        self._bound.bytes += more
        self._bytes = total_bytes
        return True

    def take_more(self, more_bytes: int) -> bool:
        """The request holds so many bytes more. False: there is no room for them."""
        return self.take(self._bytes + more_bytes)

    def leave(self) -> None:
        """The request ended. Leaving twice is leaving once."""
        if not self._left:
            self._left = True
            self._bound.requests -= 1
            self._bound.bytes -= self._bytes
