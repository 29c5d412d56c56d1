"""What keeps a process from starting.

ProcessError
├── BadSettings   a setting is missing or wrong
└── CannotListen  the address is taken, or not this computer's
"""


class ProcessError(Exception):
    """Base of the tree; the message is for whoever started the process."""


class BadSettings(ProcessError):
    """Names each setting that is missing or wrong, what it was, and what would be right."""


class CannotListen(ProcessError):
    """Names the address and says why."""
