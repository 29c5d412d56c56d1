"""What can go wrong with an input broadcast. Every rank of a group gets the same error for the same request."""

from pointsman.workers.errors import WorkerError


class BroadcastError(WorkerError):
    """Base of the errors of input broadcasts."""


class PendingMemoryError(BroadcastError):
    """The inputs were not accepted: too many bytes are pending. The request can be tried again later."""


class MaterialiseError(BroadcastError):
    """A rank could not materialise the inputs; names the rank and the original error."""


class InputsCancelledError(BroadcastError):
    """The request was cancelled before its inputs were there."""


class RankLostError(BroadcastError):
    """A rank of the group ended or stopped answering. The group cannot be used any more."""


class GroupClosedError(BroadcastError):
    """The group was shut down."""


class GroupJoinError(BroadcastError):
    """The ranks did not come together: names the rank, the value and what would be right."""
