"""What can go wrong with an input broadcast. Every rank of a group gets the same error for the same request.

BroadcastError
├── PendingMemoryFull  the inputs were not accepted: too many bytes are pending
├── NotMaterialised    a rank could not materialise the inputs
├── InputsCancelled    the request was cancelled before its inputs were there
├── RankLost           a rank of the group ended or stopped answering
├── GroupClosed        the group was shut down
└── GroupNotJoined     the ranks did not come together
"""

from pointsman.workers.errors import WorkerError


class BroadcastError(WorkerError):
    """Base of the errors of input broadcasts."""


class PendingMemoryFull(BroadcastError):
    """The inputs were not accepted: too many bytes are pending. The request can be tried again later."""


class NotMaterialised(BroadcastError):
    """A rank could not materialise the inputs; names the rank and the original error."""


class InputsCancelled(BroadcastError):
    """The request was cancelled before its inputs were there."""


class RankLost(BroadcastError):
    """A rank of the group ended or stopped answering. The group cannot be used any more."""


class GroupClosed(BroadcastError):
    """The group was shut down."""


class GroupNotJoined(BroadcastError):
    """The ranks did not come together: names the rank, the value and what would be right."""
