"""What can go wrong beside the engine, one class a cause.

WorkerError
├── ModelUnreadable    the folder of the model, or a file in it, cannot be read
├── EngineUnavailable  the engine did not answer, or answered with an error
├── QueueUnavailable   the prefill queue cannot be reached, or does not exist now
├── QueueFull          the prefill queue holds as many requests as it may
├── ChatUnavailable    the chat of a prefill request cannot be got from its decode worker
├── PromptTooLarge     the request is larger than one NATS message may be
├── ControlRefused     a control request that is not carried out
├── BodyRefused        a request whose body is not read to its end
└── BodiesFull         the bodies of other requests take all the memory for bodies

Beside what they are of: ``verification``, ``vllm.flags``, and two trees: ``multimodal.transfer.errors``,
``multimodal.broadcast.errors``.
"""

from http import HTTPStatus


class WorkerError(Exception):
    """Base of every error of this room."""


class ModelUnreadable(WorkerError):
    """The folder of the model, or a file in it, cannot be read; says which and what may be the matter."""


class EngineUnavailable(WorkerError):
    """The engine did not answer, or answered with an error; says which call and what came back."""


class QueueUnavailable(WorkerError):
    """The prefill queue cannot be reached or does not exist right now."""


class QueueFull(WorkerError):
    """The prefill queue holds as many requests as it may."""


class ChatUnavailable(WorkerError):
    """The chat of a prefill request cannot be got from its decode worker; says why."""


class PromptTooLarge(WorkerError):
    """The request is larger than one NATS message may be."""


class ControlRefused(WorkerError):
    """A control request that is not carried out: HTTP status, CamelCase reason, a sentence for a person."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class BodyRefused(WorkerError):
    """A request whose body is not read to its end: HTTP status, CamelCase reason, a sentence for a person."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class BodiesFull(WorkerError):
    """The bodies of other requests take all the memory for bodies: another worker may have room."""
