"""Whose a switch or a plan is: a service made anew under an old name takes nothing of its predecessor."""

import pytest

from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.operator.core.naming import SERVICE_UID_LABEL
from pointsman.operator.plan_inputs import belongs


def switch(owner: tuple[str, str] | None, label: str | None) -> RoleSwitch:
    owners = [{"kind": owner[0], "name": "x", "uid": owner[1]}] if owner else []
    return RoleSwitch.model_validate(
        {
            "kind": "RoleSwitch",
            "metadata": {
                "name": "s",
                "ownerReferences": owners,
                "labels": {SERVICE_UID_LABEL: label} if label else {},
            },
            "spec": {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Prefill"},
        }
    )


@pytest.mark.parametrize(
    ("owner", "label", "ours"),
    [
        (None, None, True),  # a person has just made it
        (("LLMService", "now"), None, True),
        (("LLMService", "before"), None, False),
        (("Plan", "p"), "now", True),
        (("Plan", "p"), "before", False),
        (("ConfigMap", "somebody"), None, True),  # somebody's tool made it: by hand, to us
    ],
)
def test_a_switch_is_the_services_unless_another_of_that_name_had_it(
    owner: tuple[str, str] | None, label: str | None, ours: bool
) -> None:
    assert belongs("now", switch(owner, label)) is ours
