"""The pods of a service as we know them: the mirror's, and over it what our own writes have already made of them.

The mirror hears of our writes a moment later. A decision in that moment must not be made as if they had not happened.
"""

from typing import Any, Final

from pydantic import ValidationError

from pointsman.kube.pods import Pod, ServiceKey
from pointsman.process.clock import SYSTEM_CLOCK, Clock

EXPECT_S: Final = 10.0  # a write the mirror has not shown by then is not believed any more


class Expectations:
    """Answers of the API server that are newer than the mirror."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._written: dict[str, tuple[ServiceKey, Pod, float]] = {}
        self._deleted: dict[str, float] = {}

    def wrote(self, key: ServiceKey, answer: dict[str, Any]) -> None:
        """The API server's answer to a create or patch of a pod."""
        try:
            pod = Pod.model_validate(answer)
        except ValidationError:
            return  # the mirror tells of it
        before = self._written.get(pod.metadata.uid)
        if before is not None and int(before[1].metadata.resource_version) > int(pod.metadata.resource_version):
            return  # of two writes at a time, the answer of the first came last
        self._written[pod.metadata.uid] = (key, pod, self._clock.monotonic_s() + EXPECT_S)

    def deleted(self, uid: str) -> None:
        """The API server took our delete."""
        self._deleted[uid] = self._clock.monotonic_s() + EXPECT_S

    def gone(self, uid: str) -> None:
        """The mirror saw the pod go."""
        self._written.pop(uid, None)
        self._deleted.pop(uid, None)

    def over(self, key: ServiceKey, mirrored: tuple[Pod, ...]) -> list[tuple[Pod, bool]]:
        """Each pod of the service in its newest known form, and whether it is leaving (deleted by us or anybody)."""
        now_s = self._clock.monotonic_s()
        self._written = {uid: entry for uid, entry in self._written.items() if entry[2] > now_s}
        self._deleted = {uid: until_s for uid, until_s in self._deleted.items() if until_s > now_s}
        pods = {pod.metadata.uid: pod for pod in mirrored}
        for uid, (owner, written, _) in list(self._written.items()):
            seen = pods.get(uid)
            if seen is not None and int(seen.metadata.resource_version) >= int(written.metadata.resource_version):
                del self._written[uid]
            elif owner == key:
                pods[uid] = written
        return [(pod, pod.terminating or uid in self._deleted) for uid, pod in pods.items()]
