"""Runs a program that the kernel kills when the process that started it ends. Standard library only, run as a file.

    python -I -S die_with_parent.py PARENT_PID PROGRAM ARGUMENTS…

The kernel ties the signal to the parent's *thread* that forked, so the parent starts this from a thread that lives as
long as itself (``pointsman.local.processes``). Done in the child rather than in a ``preexec_fn``, which is not safe
beside threads.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(argv: list[str]) -> None:
    """Tie, check that the parent is still there, become the program."""
    parent, program = int(argv[0]), argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
