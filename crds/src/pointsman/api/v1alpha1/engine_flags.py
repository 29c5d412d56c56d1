"""What of the engine is Pointsman's: flags, environment and pod fields a user may not set, in any spelling.

vLLM's parser reads ``--kv_transfer_config``, ``--kv-transfer-config.kv_role=x``, ``--kv-transfer-config=…`` and any
unambiguous beginning (``--kv-tr``) as one flag (``vllm/utils/argparse_utils.py``, and argparse's ``allow_abbrev``).
So a flag is reduced to its name up to ``=`` or ``.`` with dashes, and refused if an owned flag begins with it.
"""

import re
from typing import Final

ENGINE_CONTAINER: Final = "engine"  # name of the container in spec.worker.template that is the engine

OWNED_FLAGS: Final = (
    # addresses and the server itself
    "--host",
    "--port",
    "--uds",
    "--grpc-port",
    "--root-path",
    "--middleware",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--ssl-ca-certs",
    "--ssl-cert-reqs",
    "--ssl-ciphers",
    "--enable-ssl-refresh",
    "--api-server-count",
    "--shutdown-timeout",
    "--config",
    "--headless",
    "--tokens-only",
    "--disable-log-stats",
    # what the spec says elsewhere
    "--model",
    "--served-model-name",
    "--block-size",
    "--api-key",
    "--hf-token",
    # transfer of KV, its events and hashes
    "--kv-transfer-config",
    "--kv-events-config",
    "--ec-transfer-config",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--prefix-caching-hash-algo",
    # groups of pods and data parallelism, not built yet
    "--data-parallel-size-local",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-backend",
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-supervisor-port",
    "--enable-elastic-ep",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
)

# Of an encode worker only: in a service of before encode workers they were the user's to set.
ENCODE_OWNED_FLAGS: Final = ("--mm-encoder-only", "--no-mm-encoder-only")

# Short forms of those above; a number may be glued to them.
OWNED_SHORT_FLAG_PATTERN: Final = "^-(n|r|asc|dp|dpn|dpr|dpl|dpa|dpp|dpb|dph|dpe|dpm)[0-9]*$"

# Name of a flag: up to "=" or ".", before underscores become dashes.
FLAG_NAME_PATTERN: Final = "^-[^=.]*"

# The last two would open an unauthenticated admin API, and switch our plugin off.
OWNED_ENVIRONMENT_PATTERN: Final = (
    "^(POINTSMAN_.*|POD_IP|PYTHONHASHSEED|VLLM_PORT|VLLM_HOST_IP|VLLM_API_KEY|VLLM_NIXL_SIDE_CHANNEL_HOST|"
    "VLLM_NIXL_SIDE_CHANNEL_PORT|VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES|VLLM_SERVER_DEV_MODE|VLLM_PLUGINS)$"
)


def owned_flag(argument: str, flags: tuple[str, ...] = OWNED_FLAGS) -> str | None:
    """The flag of ``flags`` that ``argument`` sets, as it is spelled canonically; None if it sets none of them."""
    match = re.match(FLAG_NAME_PATTERN, argument)
    if match is None:
        return None
    name = match.group().replace("_", "-")
    if re.match(OWNED_SHORT_FLAG_PATTERN, name):
        return name
    return next((flag for flag in flags if len(name) > 2 and flag.startswith(name)), None)
