"""What can go wrong in the embedded cluster, one class a cause.

LocalError
├── NoBinary                 a program of the control plane cannot be found or built
├── ControlPlaneFailed       a part of the control plane does not start, or died
├── NodeFailed               the process node cannot start
├── ImageStoreFailed         the image store's file is wrong
├── EngineEnvironmentFailed  the engine environment, its fork server or a model cannot be made
└── ClusterFailed            the cluster cannot be brought up, or there is none

Those of one command stand beside it: ``quickstart``, ``streaming``, ``traffic``.
"""


class LocalError(Exception):
    """Root of this room's errors; the message is a sentence for the person at the terminal."""


class NoBinary(LocalError):
    """A program cannot be found or built; the message names it and what would help."""


class ControlPlaneFailed(LocalError):
    """A part of the control plane does not start, or died; the message has the end of its log."""


class NodeFailed(LocalError):
    """The process node cannot start."""


class ImageStoreFailed(LocalError):
    """The image store's file cannot be used; the message names field and value."""


class EngineEnvironmentFailed(LocalError):
    """The engine environment, its fork server or a model cannot be made; the message says what would help."""


class ClusterFailed(LocalError):
    """The cluster cannot be brought up, or there is none of that name."""
