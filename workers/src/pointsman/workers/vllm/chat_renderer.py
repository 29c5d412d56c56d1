"""Token ids of a chat from the code that vLLM's own chat endpoint uses, in the same process.

vLLM's ``/tokenize`` is not that code: it knows neither ``tool_choice`` nor ``reasoning_effort``, ``documents`` or the
messages of Harmony models. ``/v1/chat/completions/render`` is, but exists only with ``--enable-scale-out``.
"""

import logging
from collections.abc import Mapping
from typing import Any

from pointsman.serving.local_remote import PrefillReason
from pointsman.workers.types import RenderedChat

log = logging.getLogger(__name__)


class VllmChatRenderer:
    """``serving``: vLLM's OpenAIServingChat, whose method the chat endpoint itself calls."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving

    async def render(self, body: Mapping[str, Any], *, images: bool) -> RenderedChat | None:
        """The prompt of ``body``, which may be changed by it; None: the engine refuses the request.

        vLLM fills the template and tokenises in a thread of its own. Its server and its engine each cache images that
        were processed, and the server takes the engine to have what itself has. So ``images`` that are rendered here,
        which the engine never sees, stay out of that cache.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        try:
            request = ChatCompletionRequest.model_validate(body)
            if images:
                rendered = await self._serving.online_renderer.render_chat(request, skip_mm_cache=True)
            else:
                rendered = await self._serving.render_chat_request(request)
        except Exception as error:  # noqa: BLE001  # whatever it is, the endpoint answers the client with it
            log.debug("chat not rendered", extra={"why": type(error).__name__})
            return None
        if isinstance(rendered, ErrorResponse):
            return None
        prompts = rendered[1]
        kind = prompts[0]["type"] if len(prompts) == 1 else "several"
        if kind not in ("token", "multimodal"):
            return RenderedChat((), PrefillReason.UNSUPPORTED)
        return RenderedChat(tuple(prompts[0]["prompt_token_ids"]), images=kind == "multimodal")
