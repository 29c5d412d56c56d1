"""What can go wrong with an embedding transfer.

TransferError
├── NoAllocation      an allocation or its release is impossible
├── BadMessage        a peer sent something that it must not send
├── HandshakeRefused  a peer refused the connection, or could not be authenticated
├── LinkClosed        the connection to the peer is closed
├── TransferFailed    the embedding did not arrive
└── NixlUnavailable   NIXL cannot be used here, or not with this peer
"""

from pointsman.workers.errors import WorkerError


class TransferError(WorkerError):
    """Base of the errors of embedding transfers."""


class NoAllocation(TransferError):
    """An allocation or its release is impossible: names the request, the value and what would be right."""


class BadMessage(TransferError):
    """A peer sent something that it must not send."""


class HandshakeRefused(TransferError):
    """A peer refused the connection, or could not be authenticated; says why."""


class LinkClosed(TransferError):
    """The connection to the peer is closed."""


class TransferFailed(TransferError):
    """The embedding did not arrive; says why. The request needs a new one from an encode worker."""


class NixlUnavailable(TransferError):
    """NIXL cannot be used here, or not with this peer; says why."""
