"""What the local Prometheus is told to scrape."""

from pathlib import Path

from pointsman.local.prometheus import configuration


def test_targets_have_the_labels_of_the_pod_monitors_and_no_role_which_changes() -> None:
    (job,) = configuration(Path("/kube/config"))["scrape_configs"]
    added = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
    assert {"namespace", "pod", "container", "service"} <= added
    assert "role" not in added, "a worker that switches would have each of its counters twice"
