"""What ``kubectl apply`` takes as a policy, ``pointsman replay`` takes, and what it refuses is refused there too."""

from pathlib import Path

import pytest

from pointsman.local.control_plane import ControlPlane
from pointsman.local.errors import ControlPlaneFailed
from pointsman.planner.errors import PolicyFileError
from pointsman.planner.replay.policy_files import load_policy

HEAD = "apiVersion: pointsman.dev/v1alpha1\nkind: PlannerPolicy\nmetadata: {name: chat}\n"
GOOD = HEAD + "spec:\n  objectives: {ttftMs: 1500, tpotMs: 40}\n  budget: {maxGpus: 8}\n"

TAKEN = {
    "minimal": GOOD,
    "fields of the version before": GOOD + "  actions: {roleSwitch: {minDwellSeconds: 5}}\n  history: {plans: 9}\n",
    "comments and empty documents": "# mine\n---\n---\n" + GOOD + "---\n",
    "a list": "apiVersion: v1\nkind: List\nitems:\n- " + GOOD.replace("\n", "\n  "),
    "null and empty fields": GOOD + "  actions:\n  forecast: null\n  metrics: {}\n",
    "numbers as others write them": GOOD.replace("1500", "1.5e3").replace("8}", "8.0}"),
    "an anchor and a merge": GOOD.replace("{ttftMs: 1500, tpotMs: 40}", "{<<: &o {ttftMs: 9, tpotMs: 40}, ttftMs: 15}"),
    "a byte order mark": "\ufeff" + GOOD,
    "lines of Windows": GOOD.replace("\n", "\r\n"),
    "JSON": '{"apiVersion": "pointsman.dev/v1alpha1", "kind": "PlannerPolicy", "metadata": {"name": "chat"}, '
    '"spec": {"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}}}',
    "what get -o yaml prints": GOOD.replace("{name: chat}", "{name: chat, creationTimestamp: null, labels: {a: b}}"),
}
REFUSED = {
    "a Helm template": GOOD.replace("8}", "{{ .Values.maxGpus }}}"),
    "an unknown field": GOOD.replace("ttftMs", "ttfMs"),
    "an unknown field of an action": GOOD + "  actions: {roleSwitch: {enable: true}}\n",
    "text for a number": GOOD.replace("1500", "'1500'"),
    "a truth value for a number": GOOD.replace("8}", "true}"),
    "half a GPU": GOOD.replace("8}", "8.5}"),
    "a number for a truth value": GOOD + "  actions: {roleSwitch: {enabled: 1}}\n",
    "a missing field": GOOD.replace(", tpotMs: 40", ""),
    "a required field that is null": GOOD.replace("tpotMs: 40", "tpotMs: null"),
    "a value below its bound": GOOD.replace("1500", "-1"),
    "another version": GOOD.replace("v1alpha1", "v1"),
    "a list for an object": GOOD.replace("{maxGpus: 8}", "[8]"),
    "a source without its address": GOOD + "  metrics: {source: Prometheus}\n",
    "not a number": GOOD.replace("1500", ".nan"),
}


def applied(control_plane: ControlPlane, namespace: str, path: Path) -> str | None:
    """Why the API server refuses the file; None if it takes it."""
    try:
        control_plane.kubectl("apply", "--dry-run=server", "--namespace", namespace, f"--filename={path}")
    except ControlPlaneFailed as error:
        return str(error)
    return None


def replayed(path: Path) -> str | None:
    try:
        load_policy(path)
    except PolicyFileError as error:
        return str(error)
    return None


@pytest.mark.parametrize("what", TAKEN)
def test_what_kubectl_takes_replay_takes(
    installed_crds: ControlPlane, namespace: str, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(TAKEN[what], newline="")
    assert (applied(installed_crds, namespace, path), replayed(path)) == (None, None)


def test_a_field_that_is_there_twice_is_refused_though_kubectl_takes_the_last(
    installed_crds: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD + "  budget: {maxGpus: 9}\n")
    assert applied(installed_crds, namespace, path) is None
    assert "'budget' is written twice" in (replayed(path) or "")


@pytest.mark.parametrize("what", REFUSED)
def test_what_kubectl_refuses_replay_refuses(
    installed_crds: ControlPlane, namespace: str, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(REFUSED[what], newline="")
    assert applied(installed_crds, namespace, path) is not None
    assert replayed(path) is not None
