"""Which fields of a request the elastic engine knows. Any other that changes the answer is refused with its name."""

from collections.abc import Callable
from typing import Any, Final

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

_OF_THE_ENGINE: Final = frozenset(
    {"temperature", "top_p", "top_k", "seed", "max_tokens", "ignore_eos", "stop_token_ids", "logprobs"}
)
_OF_VLLMS_FRONT: Final = frozenset(
    {
        "n", "stop", "include_stop_str_in_output", "detokenize", "skip_special_tokens",
        "spaces_between_special_tokens", "output_kind", "stream_interval", "output_text_buffer_length", "flat_logprobs",
        "skip_clone", "skip_reading_prefix_cache",
    }
)  # fmt: skip
_WRITTEN_AS: Final = {
    "structured_outputs": ("tool_choice", "response_format", "structured_outputs", "text", "tools"),
    "prompt_logprobs": ("prompt_logprobs", "echo"),
    "extra_args": ("vllm_xargs", "kv_transfer_params", "ec_transfer_params"),
}
"""The fields of requests that vLLM makes a field of SamplingParams from, if its name is another one."""
_NEUTRAL: Final = SamplingParams()


def install() -> None:
    """Have vLLM's front refuse what the elastic engine does not know, before it keeps anything of the request."""
    for request_type in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):
        # What a request says is known here only; of other APIs, SamplingParams are checked below.
        request_type.to_sampling_params = _checked(request_type.to_sampling_params)
    validate = InputProcessor._validate_params

    def validate_as_known(self: Any, params: Any, *more: Any) -> Any:
        if isinstance(params, SamplingParams):
            check_supported(params)
        return validate(self, params, *more)

    InputProcessor._validate_params = validate_as_known


def _checked(to_sampling_params: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def checked(self: Any, *arguments: Any, **named: Any) -> SamplingParams:
        params = to_sampling_params(self, *arguments, **named)
        check_supported(params, self)
        return params

    return checked


def check_supported(params: SamplingParams, request: Any = None) -> None:
    """Raises VLLMValidationError for the first field that the elastic engine does not know.

    The error names the field of ``request``, from which ``params`` were made, or else that of SamplingParams.
    """
    for field in params.__struct_fields__:
        if field.startswith("_") or field in _OF_THE_ENGINE or field in _OF_VLLMS_FRONT:
            continue
        value = getattr(params, field)
        if _says_nothing(value) or value == getattr(_NEUTRAL, field):
            continue
        written = [each for each in _WRITTEN_AS.get(field, ()) if _asks(getattr(request, each, None))]
        name = written[0] if written else field
        raise VLLMValidationError(f"'{name}' is not supported by an elastic group", parameter=name, value=value)


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or value in ([], {})


def _asks(value: Any) -> bool:
    """Whether a field is written; a ``tool_choice`` of these words needs no grammar."""
    return not _says_nothing(value) and value not in ("none", "auto")
