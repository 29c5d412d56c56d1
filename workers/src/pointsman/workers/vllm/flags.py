"""What vLLM is started with: arguments and environment, from a worker's settings and the user's own arguments. Pure.

Every role is served by every worker, so all of them start alike: ``kv_both``. A producer that decodes lacks the
protection that keeps blocks still being written from being pulled (asynchronous scheduling on GPU).
"""

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from pointsman.api.protocol import kv, names
from pointsman.api.protocol.names import EmbeddingRole
from pointsman.api.v1alpha1.engine_flags import OWNED_ENVIRONMENT_PATTERN, owned_flag
from pointsman.workers.errors import WorkerError
from pointsman.workers.event_sockets import kv_event_endpoints
from pointsman.workers.settings import WorkerSettings

MIDDLEWARE: Final = "pointsman.workers.middleware.PointsmanMiddleware"
BROADCAST_EXECUTOR: Final = "pointsman.workers.multimodal.broadcast.vllm_executor.BroadcastExecutor"
MANAGER_MIDDLEWARE: Final = "pointsman.workers.elastic.manager.middleware.ManagerMiddleware"
EC_CONNECTOR_MODULE: Final = "pointsman.workers.multimodal.exchange.connector"
PREFIX_HASH: Final = (
    "sha256_cbor"  # of vLLM's choices the one that neither Python's pickle nor a process's seed changes
)
CPU_KV_CACHE: Final = "512M"  # vLLM would take most of the computer's memory
QUIET_PATHS: Final = "/health,/metrics,/pointsman/v1/state"

# Defaults of Pointsman, each with the flags whose presence among the user's arguments leaves it out.
_CPU_DEFAULTS: Final = (
    # compiling needs a C++ compiler and minutes, and buys nothing at the sizes a CPU serves
    (("--enforce-eager",), ("--enforce-eager", "--no-enforce-eager")),
    (("--kv-cache-memory-bytes", CPU_KV_CACHE), ("--kv-cache-memory-bytes", "--num-gpu-blocks-override")),
)
_PARALLEL: Final = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")


class FlagNotAllowed(WorkerError):
    """A user's argument sets what Pointsman sets."""


def vllm_arguments(settings: WorkerSettings, user: Sequence[str]) -> list[str]:
    """Arguments of vLLM's API server: Pointsman's, then the user's.

    Raises FlagNotAllowed for an argument that Pointsman owns, in whatever spelling vLLM would accept.
    """
    if settings.embedding_role is EmbeddingRole.PRODUCER:
        return _encode_arguments(settings, user)
    embeddings = () if settings.embedding_role is None else ("--ec-transfer-config", json.dumps(ec_transfer(settings)))
    return _arguments(
        settings,
        user,
        "--enable-prefix-caching",
        *("--prefix-caching-hash-algo", PREFIX_HASH),
        *("--kv-transfer-config", json.dumps(kv_transfer(settings))),
        *("--kv-events-config", json.dumps(kv_events(settings))),
        *embeddings,
    )


def _encode_arguments(settings: WorkerSettings, user: Sequence[str]) -> list[str]:
    """The same for an encode worker: the encoder alone, so there is neither KV nor a prefix cache of it."""
    return _arguments(
        settings,
        user,
        "--mm-encoder-only",
        "--no-enable-prefix-caching",
        *("--ec-transfer-config", json.dumps(ec_transfer(settings))),
    )


def elastic_arguments(settings: WorkerSettings, user: Sequence[str]) -> list[str]:
    """The same for the front of an elastic group, whose instances have no prefix cache and move no KV to others.

    Raises FlagNotAllowed.
    """
    return _arguments(settings, user, "--no-enable-prefix-caching", middleware=MANAGER_MIDDLEWARE)


def _arguments(
    settings: WorkerSettings, user: Sequence[str], *of_engine: str, middleware: str = MIDDLEWARE
) -> list[str]:
    for argument in user:
        if (flag := owned_flag(argument)) is not None:
            raise FlagNotAllowed(f"engine.args has {argument!r}: {flag} is set by Pointsman; leave it out")
    arguments = [
        *("--model", settings.model),
        *(("--revision", settings.model_revision) if settings.model_revision else ()),
        *("--served-model-name", settings.served_name),
        *("--host", settings.bind_host),
        *("--port", str(names.ENGINE_PORT)),
        *("--block-size", str(settings.block_size)),
        *("--shutdown-timeout", str(round(settings.drain_timeout_seconds))),
        *("--middleware", middleware),
        *("--disable-access-log-for-endpoints", QUIET_PATHS),
        *of_engine,
    ]
    given = {argument.partition("=")[0].replace("_", "-") for argument in user if argument.startswith("-")}
    several_ranks = settings.gpus > 1 or not given.isdisjoint(_PARALLEL)
    if settings.broadcasts_inputs and several_ranks and "--distributed-executor-backend" not in given:
        arguments += ("--distributed-executor-backend", BROADCAST_EXECUTOR)
    for default, unless in _defaults(settings):
        if given.isdisjoint(unless):
            arguments += default
    return [*arguments, *user]


def _defaults(settings: WorkerSettings) -> Sequence[tuple[Sequence[str], Sequence[str]]]:
    if settings.gpus == 0:
        return _CPU_DEFAULTS
    if settings.gpus > 1:  # a worker that asked for several GPUs means to use them
        return [(("--tensor-parallel-size", str(settings.gpus)), _PARALLEL)]
    return ()


def kv_transfer(settings: WorkerSettings) -> dict[str, object]:
    """vLLM's ``--kv-transfer-config``.

    ``recompute``: when the KV cannot be fetched (the prefill worker died), the engine computes the prompt itself.
    """
    config: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": round(settings.lease_seconds)},
    }
    return config | ({"kv_buffer_device": "cpu"} if settings.gpus == 0 else {})


def ec_transfer(settings: WorkerSettings) -> dict[str, object]:
    """vLLM's ``--ec-transfer-config``. The connector reads its own settings from the environment."""
    return {
        "ec_connector": "PointsmanECConnector",
        "ec_connector_module_path": EC_CONNECTOR_MODULE,
        "ec_role": settings.embedding_role,
    }


def kv_events(settings: WorkerSettings) -> dict[str, object]:
    """vLLM's ``--kv-events-config``. The topic is the pod's name, so a restarted container keeps its identity."""
    endpoint, replay_endpoint = kv_event_endpoints(settings)
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint,
        "topic": kv.kv_events_topic(settings.worker),
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
    }


def refused_environment(current: Mapping[str, str]) -> list[str]:
    """Variables of ``current`` that are removed before vLLM is imported: they would open or change it unseen.

    Admission refuses them in the `env` of a template, but sees neither what `envFrom` brings nor an image.
    """
    ours = ("POINTSMAN_", names.ENV_POD_IP)
    return [name for name in current if re.match(OWNED_ENVIRONMENT_PATTERN, name) and not name.startswith(ours)]


def engine_environment(settings: WorkerSettings, current: Mapping[str, str]) -> dict[str, str]:
    """Variables to set before vLLM is imported; a user's value in ``current`` stays where Pointsman has no say."""
    environment = {
        "VLLM_HOST_IP": settings.pod_ip,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": settings.pod_ip,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(names.NIXL_PORT),
    }
    defaults = {"VLLM_NO_USAGE_STATS": "1"}
    if settings.model.startswith("/"):
        defaults["HF_HUB_OFFLINE"] = "1"  # all files are there: no question to the hub
    if settings.gpus == 0:
        environment |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # allows one process for engine core and model; 1 GB less
            "UCX_RCACHE_MAX_UNRELEASED": "1024",  # the plugin imports nixl early; nixl would warn
        }
        defaults |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp,self",  # what there is between pods
        }
        if ipaddress.ip_address(settings.pod_ip).is_loopback:
            defaults["UCX_NET_DEVICES"] = "lo"  # else UCX listens on every interface of the computer
    return environment | {name: value for name, value in defaults.items() if name not in current}
