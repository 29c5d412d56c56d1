"""``pointsman local``: a cluster on this computer, up and down."""

import argparse
import signal
import sys
from typing import Final

from pointsman.local.binaries import command as binaries_command
from pointsman.local.cluster import LocalCluster, down, running
from pointsman.local.control_plane import KUBECONFIG
from pointsman.local.engine import command as engine_command
from pointsman.local.errors import LocalError
from pointsman.local.state import clean_leftovers, clusters_directory, is_kept
from pointsman.local.typed_command import typed_command
from pointsman.process.arguments import CommandParser

_EPILOG: Final = """
examples:
  pointsman local up                       start a cluster with Pointsman, until Ctrl-C
  pointsman local up --keep                … and leave it running
  pointsman local up --start-seconds 45    workers take as long to start as on a real cluster
  pointsman local status                   running clusters and their kubeconfigs
  pointsman local down                     end the cluster
  pointsman local binaries --list          which programs it uses
  pointsman local model --size small       a model for its workers
"""

_UP_EPILOG: Final = """
examples:
  pointsman local up                      until Ctrl-C; prints the lines that set up kubectl
  pointsman local up trial --keep         another cluster, which keeps running
  pointsman local up --no-engine          starts at once, without workers: only the control plane
  pointsman local up --gpus 16 --start-seconds 45
  pointsman local up --prometheus         with a Prometheus that scrapes Pointsman's pods (its first build: 5 minutes)
"""
_DOWN_EPILOG: Final = """
examples:
  pointsman local down          the one named local
  pointsman local down trial    another one
"""
_STATUS_EPILOG: Final = """
example:
  pointsman local status        clusters, and the KUBECONFIG of each
"""


def main(argv: list[str]) -> int:
    """Run a Kubernetes cluster with Pointsman on this computer."""
    parser = CommandParser(
        prog="pointsman local",
        description="A real control plane, a node that runs pods as processes, and Pointsman installed on it.",
        epilog=_EPILOG,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command_of(name: str, words: str, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=words, description=words, epilog=epilog)

    starting = command_of("up", "start a cluster", _UP_EPILOG)
    ending = command_of("down", "end a cluster and remove its files", _DOWN_EPILOG)
    command_of("status", "list the clusters of this computer", _STATUS_EPILOG)
    commands.add_parser("binaries", help="find or build the programs it uses", add_help=False)
    commands.add_parser("engine", help="install vLLM for CPU, which its workers use", add_help=False)
    commands.add_parser("model", help="make a small model for them", add_help=False)
    for command in (starting, ending):
        command.add_argument("name", nargs="?", default="local", help="name of the cluster (default: local)")
    starting.add_argument("--keep", action="store_true", help="leave it running; 'pointsman local down' ends it")
    starting.add_argument("--gpus", type=int, default=8, help="made-up nvidia.com/gpu capacity (default: 8)")
    starting.add_argument("--start-seconds", type=float, default=0.0, help="simulated start-up time of workers")
    starting.add_argument("--prometheus", action="store_true", help="with a real Prometheus that scrapes all its pods")
    starting.add_argument("--images", action="store_true", help="with the engine's image packages")
    starting.add_argument("--no-engine", action="store_true", help="without vLLM: no workers can run")
    if argv[:1] == ["binaries"]:
        return binaries_command.main(argv[1:])
    try:
        if argv[:1] == ["engine"]:
            return engine_command.engine(argv[1:])
        if argv[:1] == ["model"]:
            return engine_command.model(argv[1:])
        options = parser.parse_args(argv)
        if options.command == "up":
            return _up(options)
        if options.command == "down":
            return _down(options.name)
        return _status()
    except LocalError as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _up(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with LocalCluster(
        options.name,
        keep=options.keep,
        engine=not options.no_engine,
        images=options.images,
        gpus=options.gpus,
        start_seconds=options.start_seconds,
        prometheus=options.prometheus,
        report=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    ) as cluster:
        cluster.install()
        print(f"export KUBECONFIG={cluster.kubeconfig}")
        print(f"export PATH={cluster.kubectl_path.parent}:$PATH", flush=True)
        if cluster.prometheus is not None:
            print(f"Prometheus: {cluster.prometheus.url}", file=sys.stderr, flush=True)
        if options.keep:
            print(f"it keeps running; to end it: {typed_command()} local down {options.name}", file=sys.stderr)
        else:
            print("running until Ctrl-C", file=sys.stderr, flush=True)
            signal.pause()
    return 0


def _down(name: str) -> int:
    if not down(name):
        print(f"pointsman: there is no cluster '{name}' (there are: {', '.join(running()) or 'none'})", file=sys.stderr)
        return 1
    print(f"ended {name}")
    return 0


def _status() -> int:
    for directory in clean_leftovers():
        print(f"{directory.name:<24} was left behind by a killed run: cleaned", file=sys.stderr)
    clusters = running()
    for name, processes in clusters.items():
        directory = clusters_directory() / name
        how = "kept" if is_kept(directory) else "until its owner ends"
        print(f"{name:<24} {len(processes)} processes, {how}")
        print(f"{'':<24} export KUBECONFIG={directory / KUBECONFIG}")
    if not clusters:
        print("no cluster runs on this computer")
    return 0
