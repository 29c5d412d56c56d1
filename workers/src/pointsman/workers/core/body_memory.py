"""How much memory the bodies of requests may take together. Pure."""


class BodyMemory:
    """A budget in bytes, shared by all requests of one worker."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Taken and not given back."""
        return self._used_bytes

    def take(self, size_bytes: int) -> bool:
        """Reserve so many bytes; False, and nothing reserved, if there are fewer left."""
        if self._used_bytes + size_bytes > self.limit_bytes:
            return False
        self._used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """The body is not needed any more."""
        self._used_bytes -= size_bytes
