"""What all tests share."""

import logging
import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Speed is a benchmark, never a timed test: on a busy computer one example may take as long as it likes. The examples
# are the same in every run, so that a red run is the change's; `POINTSMAN_TEST_EXPLORE=1` draws new ones, to find more.
settings.register_profile(
    "pointsman", deadline=None, print_blob=True, derandomize=not os.environ.get("POINTSMAN_TEST_EXPLORE")
)
settings.load_profile("pointsman")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a command configures in a test ends with it: the stream that pytest gave it is closed then."""
    before = [
        (each, each.handlers[:], each.level, each.propagate) for each in map(logging.getLogger, ("", "pointsman"))
    ]
    yield
    for logger, handlers, level, propagate in before:
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


_LAST_LINES = 15
_internal_errors: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Make it plain text: xdist ends the whole run at a warning that it cannot send to its other process."""
    warning_message.source = None
    text = str(warning_message.message).encode("utf-8", "backslashreplace").decode()
    if text != str(warning_message.message):
        warning_message.message = UserWarning(text)


def pytest_internalerror(excrepr: object) -> None:
    """Keep it for the end."""
    _internal_errors.append(str(excrepr))


def pytest_unconfigure() -> None:
    """Print the first internal error last: of a long log often only the end is kept."""
    if _internal_errors and not os.environ.get("PYTEST_XDIST_WORKER"):
        lines = [line for line in _internal_errors[0].splitlines() if line.strip("E ")]
        print("pytest broke, not a test. Its first error ends with:", *lines[-_LAST_LINES:], sep="\n")
