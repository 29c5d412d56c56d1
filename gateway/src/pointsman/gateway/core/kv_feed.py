"""What the frames of a worker's KV feed mean for the index."""

from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.kv_feed import MalformedFeed, unpack_hashes
from pointsman.gateway.core.index import KvIndex, Replacement
from pointsman.gateway.types import WorkerKey


class FeedGap(ValueError):
    """Frames are missing: only a new snapshot helps."""


class FeedNotSupported(ValueError):
    """The worker's version has no feed that this gateway understands."""


class FeedState:
    """One stream of one worker, from its first frame to its end."""

    def __init__(self, index: KvIndex, worker: WorkerKey) -> None:
        self._index = index
        self._worker = worker
        self._snapshot: Replacement | None = None
        self._sequence = 0
        self.known = False  # a snapshot was complete

    def apply(self, frame: wire.Frame) -> bool:
        """Bring the index up to ``frame``; whether that completed a snapshot.

        Raises FeedGap, FeedNotSupported or MalformedFeed.
        """
        match frame:
            case wire.Snapshot():
                self._begin(frame)
            case wire.Blocks():
                return self._add(frame)
            case wire.Increment():
                self._increment(frame)
            case wire.Heartbeat(sequence=sequence):
                if self.known and sequence != self._sequence:
                    raise FeedGap(f"increments {self._sequence + 1} to {sequence} are missing")
        return False

    def abandon(self) -> None:
        """The stream ended: a snapshot that is not complete says nothing."""
        if self._snapshot is not None:
            self._snapshot.abandon()
            self._snapshot = None

    def _begin(self, frame: wire.Snapshot) -> None:
        if frame.version != wire.FEED_VERSION:
            raise FeedNotSupported(
                f"the worker's KV feed has version {frame.version}; this gateway reads {wire.FEED_VERSION}"
            )
        self.abandon()
        self._snapshot = self._index.replace(self._worker)
        self._sequence = frame.sequence

    def _add(self, frame: wire.Blocks) -> bool:
        if self._snapshot is None:
            raise MalformedFeed("blocks of a snapshot that was not announced")
        for run in frame.runs:
            self._snapshot.add(unpack_hashes(run.hashes), parent=run.parent)
        if not frame.last:
            return False
        self._snapshot.finish()
        self._snapshot = None
        self.known = True
        return True

    def _increment(self, frame: wire.Increment) -> None:
        if self._snapshot is not None or not self.known:
            raise MalformedFeed("an increment without a whole snapshot before it")
        if frame.sequence != self._sequence + 1:
            raise FeedGap(f"increments {self._sequence + 1} to {frame.sequence - 1} are missing")
        self._sequence = frame.sequence
        for change in frame.changes:
            match change:
                case wire.Stored(parent=parent, hashes=hashes):
                    self._index.stored_chain(self._worker, unpack_hashes(hashes), parent=parent)
                case wire.Removed(hashes=hashes):
                    self._index.removed_chain(self._worker, unpack_hashes(hashes))
                case wire.Cleared():
                    self._index.cleared(self._worker)
