"""What all tests share."""

import os

from hypothesis import settings

# Speed is a benchmark, never a timed test: on a busy computer one example may take as long as it likes. The examples
# are the same in every run, so that a red run is the change's; `POINTSMAN_TEST_EXPLORE=1` draws new ones, to find more.
settings.register_profile(
    "pointsman", deadline=None, print_blob=True, derandomize=not os.environ.get("POINTSMAN_TEST_EXPLORE")
)
settings.load_profile("pointsman")
