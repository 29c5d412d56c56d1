"""A real Prometheus beside the cluster: it finds Pointsman's pods by the API server and scrapes them.

What the chart's PodMonitors give on a cluster with the Prometheus operator: a target for each port named ``http``
(gateways, workers) or ``metrics`` (operator, planner), with the labels namespace, pod, container and service, and
component besides. No role: it changes while a worker's counters go on, and each of them would become two. Where a
metric has such a label itself, it counts: the planner's are about services in other namespaces. The planner's source
``Prometheus``, ``pointsman record`` and the chart's dashboards read those.
"""

import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman.api.protocol import names
from pointsman.local.addresses import free_port
from pointsman.local.errors import ClusterFailed
from pointsman.local.processes import Part

SCRAPE_S: Final = 1.0
READY_S: Final = 60.0
_RETENTION: Final = "1d"
_POLL_S: Final = 0.1
_ADDRESS: Final = "127.0.0.1"


class Prometheus:
    """One server, its store and its configuration in ``directory``; ``kubeconfig`` is whom it asks for pods."""

    def __init__(self, program: Path, directory: Path, kubeconfig: Path, record: Path, *, keep: bool) -> None:
        self._directory = directory
        self._kubeconfig = kubeconfig
        self._port = free_port(_ADDRESS)
        self._part = Part(
            "prometheus",
            [
                str(program),
                f"--config.file={self._configuration_file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--storage.tsdb.retention.time={_RETENTION}",
                f"--web.listen-address={_ADDRESS}:{self._port}",
            ],
            directory / "prometheus.log",
            record,
            keep=keep,
        )

    @property
    def url(self) -> str:
        """Base address of its API and of its pages."""
        return f"http://{_ADDRESS}:{self._port}"

    def start(self) -> None:
        """Start it; ``wait_ready`` waits until it answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._configuration_file.write_text(yaml.safe_dump(configuration(self._kubeconfig), sort_keys=False))
        self._part.start()

    def wait_ready(self) -> None:
        """Return when it answers queries. Raises ClusterFailed with the end of its log."""
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self._part.exit_code is not None or time.monotonic() > deadline:
                raise ClusterFailed(f"Prometheus is not ready:\n{self._part.last_words()}")
            time.sleep(_POLL_S)

    @property
    def _configuration_file(self) -> Path:
        return self._directory / "prometheus.yaml"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """What it is told, as ``prometheus.yml``. Source: Prometheus' ``kubernetes_sd_config`` and ``relabel_config``."""
    meta = "__meta_kubernetes_pod_"
    return {
        "global": {"scrape_interval": f"{SCRAPE_S:g}s", "scrape_timeout": f"{SCRAPE_S:g}s"},
        "scrape_configs": [
            {
                "job_name": "pointsman",
                "honor_labels": True,
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
                "relabel_configs": [
                    # Ours: what the chart installed, or a part of a service.
                    {
                        "source_labels": [_label("app.kubernetes.io/part-of"), _label(names.SERVICE_LABEL)],
                        "regex": "pointsman;.*|.*;.+",
                        "action": "keep",
                    },
                    {"source_labels": [f"{meta}container_port_name"], "regex": "http|metrics", "action": "keep"},
                    # A pod that has ended, or has no address yet, is no failed scrape.
                    {"source_labels": [f"{meta}phase"], "regex": "Running", "action": "keep"},
                    *(
                        {"source_labels": [source], "target_label": label}
                        for label, source in (
                            ("namespace", "__meta_kubernetes_namespace"),
                            ("pod", f"{meta}name"),
                            ("container", f"{meta}container_name"),
                            ("component", _label(names.COMPONENT_LABEL)),
                            ("service", _label(names.SERVICE_LABEL)),
                        )
                    ),
                ],
            }
        ],
    }


def _label(name: str) -> str:
    """Prometheus' name for a pod's label."""
    return "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in name)
