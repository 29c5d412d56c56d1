"""vLLM: which of its options decide whether two workers may exchange KV, and how a worker of it is started.

``python -m pointsman.workers.vllm`` adds the flags that Pointsman owns (KV transfer, ports, block size, events) and
starts vLLM's own server; only the user's flags are in the manifest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.engine_flags import ENCODE_OWNED_FLAGS, OWNED_FLAGS, owned_flag
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.model_source import HubModel
from pointsman.operator.core.install import Install
from pointsman.operator.core.messages import specs as text
from pointsman.operator.core.snapshot import Service
from pointsman.operator.core.worker_pod import check_template, engine_container, model_source, worker_pod
from pointsman.operator.errors import Refused

ENTRY: Final = ("python", "-m", "pointsman.workers.vllm")

_CPU_BLOCK_SIZE: Final = 128  # on CPU vLLM packs keys and values inside a block: multiples of 32, equal on both sides
_GPU_BLOCK_SIZE: Final = 16

# Flags of vLLM that are part of its NIXL compatibility hash or change what KV means.
_KV_FLAGS: Final = (
    "--attention-backend",
    "--dtype",
    "--hf-overrides",
    "--kv-cache-dtype",
    "--quantization",
    "--revision",
    "--rope-scaling",
    "--speculative-config",
)
_REVISION: Final = ("--revision",)
_KV_ENV: Final = ("VLLM_ATTENTION_BACKEND", "VLLM_KV_CACHE_LAYOUT")


class VllmAdapter:
    """See ``EngineAdapter``."""

    def check(self, spec: LLMServiceSpec) -> None:
        """Raise Refused for what admission should have refused: the operator does not rely on it."""
        _check_arguments(spec.engine.args, "spec.engine.args", OWNED_FLAGS)
        source = model_source(spec)
        if isinstance(source, HubModel) and source.revision and next(_values_of(spec.engine.args, _REVISION), None):
            raise Refused(text.revision_twice(source.revision))
        block_size = self.block_size(spec)
        if spec.worker.gpus == 0 and block_size % 32:
            raise Refused(text.cpu_block_size(block_size))
        check_template(spec.worker.template_dict())
        if spec.encode is not None:
            _check_arguments(spec.encode.args, "spec.encode.args", (*OWNED_FLAGS, *ENCODE_OWNED_FLAGS))
            check_template(spec.encode.template_dict(), "encode", "encode")

    def block_size(self, spec: LLMServiceSpec) -> int:
        """The user's, or what suits the device."""
        if spec.engine.block_size is not None:
            return spec.engine.block_size
        return _CPU_BLOCK_SIZE if spec.worker.gpus == 0 else _GPU_BLOCK_SIZE

    def kv_inputs(self, spec: LLMServiceSpec, install: Install) -> Mapping[str, Any]:
        """Image (vLLM's version), model path, block size, device, and the flags that change what KV means."""
        env = engine_container(spec.worker.template_dict()).get("env") or []
        # A decode worker counts a lease by its own setting: with another one it would pull KV that is freed already.
        lease = spec.worker.limits.lease_seconds if spec.worker.limits is not None else None
        return {
            "image": spec.engine.image or install.worker_image,
            "model": spec.model.source,
            "blockSize": self.block_size(spec),
            "cpu": spec.worker.gpus == 0,
            "flags": sorted(_values_of(spec.engine.args, _KV_FLAGS)),
            "env": sorted([item["name"], str(item.get("value"))] for item in env if item.get("name") in _KV_ENV),
            **({"leaseSeconds": lease} if lease is not None else {}),
        }

    def pod(self, service: Service, install: Install, name: str, role: Role) -> dict[str, Any]:
        """The manifest of one worker."""
        return worker_pod(
            service,
            install,
            name,
            role,
            command=ENTRY,
            block_size=self.block_size(service.spec),
            kv_inputs=self.kv_inputs(service.spec, install),
        )


def _check_arguments(arguments: Sequence[str], field: str, owned: tuple[str, ...]) -> None:
    """Raise Refused for a flag among the user's that is Pointsman's."""
    for argument in arguments:
        flag = owned_flag(argument, owned)
        if flag is not None:
            raise Refused(text.flag_is_set(field, argument, flag))


def _values_of(args: Sequence[str], flags: Sequence[str]) -> Iterator[list[str]]:
    """``[flag, value]`` of each of ``flags`` in ``args``, whichever way it is spelled."""
    for place, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        flag = flag.replace("_", "-")
        if flag in flags:
            following = args[place + 1] if place + 1 < len(args) else ""
            yield [flag, value if equals else following]
