"""What all tests share."""

from hypothesis import settings

# Speed is a benchmark, never a timed test: on a busy computer one example may take as long as it likes.
settings.register_profile("pointsman", deadline=None, print_blob=True)
settings.load_profile("pointsman")
