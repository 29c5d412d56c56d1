"""What can go wrong in the embedded cluster, one class a cause.

LocalError
├── BinaryError          a program of the control plane cannot be found or built
├── ControlPlaneError    a part of the control plane does not start, or died
├── NodeError            the process node cannot start
├── ImageStoreError      the image store's file is wrong
├── EngineEnvironmentError  the engine environment, its fork server or a model cannot be made
└── ClusterError         the cluster cannot be brought up, or there is none
"""


class LocalError(Exception):
    """Root of this room's errors; the message is a sentence for the person at the terminal."""


class BinaryError(LocalError):
    """A program cannot be found or built; the message names it and what would help."""


class ControlPlaneError(LocalError):
    """A part of the control plane does not start, or died; the message has the end of its log."""


class NodeError(LocalError):
    """The process node cannot start."""


class ImageStoreError(LocalError):
    """The image store's file cannot be used; the message names field and value."""


class EngineEnvironmentError(LocalError):
    """The engine environment, its fork server or a model cannot be made; the message says what would help."""


class ClusterError(LocalError):
    """The cluster cannot be brought up, or there is none of that name."""
