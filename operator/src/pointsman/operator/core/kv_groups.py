"""Which workers of a service may exchange KV, and which image keeps it so.

Workers of equal ``kv_compatibility`` are one KV group; only they exchange KV. The image is part of it. So a service
whose spec names no image keeps the image it runs when the operator's default changes: otherwise the next worker that
is replaced would end remote prefill.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.operator.core.messages import kv as text
from pointsman.operator.core.problems import IMAGE_FAILURES
from pointsman.operator.core.snapshot import Service, Snapshot, Worker


def worker_image(
    service: Service,
    *,
    default: str,
    stored: str | None,
    workers: Iterable[Worker],
    compatibility_of: Callable[[str], str],
) -> str:
    """The image of workers that are created now.

    ``default`` is the operator's, ``stored`` the one in the service's status. A service of an earlier version has
    none there: it keeps the image of most of its workers. An image that none of its workers could pull is not kept.
    ``compatibility_of`` maps an image to the ``kv_compatibility`` of a worker with the present spec: an image that
    something rewrote in the pod is not what the worker was made of. Instances of an elastic group have none, and are
    alike.
    """
    if service.spec.engine.image is not None:
        return service.spec.engine.image
    if service.follows_default_image:
        return default
    workers = tuple(workers)
    if stored is not None and not _cannot_be_pulled(stored, workers):
        return stored
    return _image_of_most(workers, default, compatibility_of)


def _cannot_be_pulled(image: str, workers: Iterable[Worker]) -> bool:
    """Every active worker of ``image``, and there is one, waits for it: no worker that serves would be parted."""
    waits = [w.container.waiting_reason in IMAGE_FAILURES for w in workers if w.active and w.image == image]
    return bool(waits) and all(waits)


def _image_of_most(workers: Iterable[Worker], default: str, compatibility_of: Callable[[str], str]) -> str:
    images = Counter(
        worker.image
        for worker in workers
        if worker.active
        and worker.role is not Role.ENCODE
        and worker.container.waiting_reason not in IMAGE_FAILURES
        and worker.image is not None
        and worker.kv_compatibility == compatibility_of(worker.image)
    )
    return max(images, key=lambda image: (images[image], image == default, image), default=default)


def lacks_decode_peer(worker: Worker, workers: Iterable[Worker]) -> bool:
    """There are other active decode workers, and none of them may pull the KV of ``worker``."""
    others = [other for other in _active(workers, Role.DECODE) if other.uid != worker.uid]
    return bool(others) and all(other.kv_compatibility != worker.kv_compatibility for other in others)


def incompatibilities(snapshot: Snapshot) -> Iterator[tuple[Role, str]]:
    """For each role, the workers without any peer of the other role to exchange KV with, in a sentence.

    Nothing while a role has no active worker: then something else is wrong, and reported.
    """
    prefill, decode = (_active(snapshot.workers, role) for role in LANGUAGE_ROLES)
    if not prefill or not decode:
        return
    current = snapshot.kv_compatibility
    outdated = [w.name for w in (*prefill, *decode) if current is not None and w.kv_compatibility != current]
    for role, mine, others in ((Role.PREFILL, prefill, decode), (Role.DECODE, decode, prefill)):
        groups = {other.kv_compatibility for other in others}
        alone = [worker for worker in mine if worker.kv_compatibility not in groups]
        if not alone:
            continue
        names = sorted(worker.name for worker in alone)
        yield role, text.incompatible(role, names, _groups(alone), _groups(others), sorted(outdated))


def _active(workers: Iterable[Worker], role: Role) -> list[Worker]:
    return [worker for worker in workers if worker.active and worker.role is role]


def _groups(workers: Collection[Worker]) -> list[tuple[str | None, str | None]]:
    return [(worker.image, worker.kv_compatibility) for worker in workers]
