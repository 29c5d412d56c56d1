"""What can go wrong beside the engine, one tree."""

from http import HTTPStatus


class WorkerError(Exception):
    """Base of every error of this room."""


class ModelUnreadableError(WorkerError):
    """The folder of the model, or a file in it, cannot be read; says which and what may be the matter."""


class EngineUnavailableError(WorkerError):
    """The engine did not answer, or answered with an error; says which call and what came back."""


class QueueUnavailableError(WorkerError):
    """The prefill queue cannot be reached or does not exist right now."""


class QueueFullError(WorkerError):
    """The prefill queue holds as many requests as it may."""


class ChatUnavailableError(WorkerError):
    """The chat of a prefill request cannot be got from its decode worker; says why."""


class PromptTooLargeError(WorkerError):
    """The request is larger than one NATS message may be."""


class ControlRefusedError(WorkerError):
    """A control request that is not carried out: HTTP status, CamelCase reason, a sentence for a person."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class BodyRefusedError(WorkerError):
    """A request whose body is not read to its end: HTTP status, CamelCase reason, a sentence for a person."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class BodiesFullError(WorkerError):
    """The bodies of other requests take all the memory for bodies: another worker may have room."""
