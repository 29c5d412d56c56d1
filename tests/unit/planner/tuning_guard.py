"""For tests: constants must be those of the policy, and never the shipped ones from a default argument."""

from typing import Any

import pytest

from pointsman.planner.core.tuning import SHIPPED, Tuning


def others_than_shipped(monkeypatch: pytest.MonkeyPatch) -> Tuning:
    """The same values in another object; from now on reading a value of ``SHIPPED`` fails."""
    own = SHIPPED.model_copy()
    read = Tuning.__getattribute__

    def checked(self: Tuning, name: str) -> Any:
        assert self is not SHIPPED or name not in type(self).model_fields, f"{name} was read of SHIPPED"
        return read(self, name)

    monkeypatch.setattr(Tuning, "__getattribute__", checked)
    return own
