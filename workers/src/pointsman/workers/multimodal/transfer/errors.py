"""What can go wrong with an embedding transfer."""

from pointsman.workers.errors import WorkerError


class TransferError(WorkerError):
    """Base of the errors of embedding transfers."""


class AllocationError(TransferError):
    """An allocation or its release is impossible: names the request, the value and what would be right."""


class ProtocolError(TransferError):
    """A peer sent something that it must not send."""


class HandshakeRefusedError(TransferError):
    """A peer refused the connection, or could not be authenticated; says why."""


class LinkClosedError(TransferError):
    """The connection to the peer is closed."""


class TransferFailedError(TransferError):
    """The embedding did not arrive; says why. The request needs a new one from an encode worker."""


class NixlUnavailableError(TransferError):
    """NIXL cannot be used here, or not with this peer; says why."""
