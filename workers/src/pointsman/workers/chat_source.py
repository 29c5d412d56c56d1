"""The prefill worker's way to prompts with images, which are too large for the prefill queue.

The decode worker keeps the chat while it waits; see PREFILL_CHATS_PATH in pointsman.api.protocol.control.
"""

from typing import Any, Final
from urllib.parse import quote

import aiohttp

from pointsman.api.protocol.control import PREFILL_CHATS_PATH, accepted_tokens, chat_credential
from pointsman.workers.core.bodies import json_object
from pointsman.workers.errors import ChatUnavailable
from pointsman.workers.settings import WorkerSettings

SILENCE_S: Final = 5.0  # of a decode worker that was asked for a chat
MAX_CHAT_BYTES: Final = 1 << 30


class ChatSource:
    """Gets chats of at most ``max_bytes`` from decode workers."""

    def __init__(self, settings: WorkerSettings, max_bytes: int = MAX_CHAT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._token = accepted_tokens(settings.control_token.get_secret_value())[0]
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, at: str, request_id: str) -> dict[str, Any]:
        """The chat of a request that waits at ``at`` (host and port). Raises ChatUnavailable."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=SILENCE_S, sock_read=SILENCE_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        credential = {"Authorization": f"Bearer {chat_credential(self._token, request_id)}"}
        try:
            url = f"http://{at}{PREFILL_CHATS_PATH}/{quote(request_id, safe='')}"
            async with self._session.get(url, headers=credential, allow_redirects=False) as response:
                if response.status != 200 or (response.content_length or 0) > self._max_bytes:
                    raise ChatUnavailable(f"{at}: HTTP {response.status}, {response.content_length} bytes")
                chat = json_object(await self._whole(response))
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise ChatUnavailable(f"{at}: {error or type(error).__name__}") from error
        if chat is None:
            raise ChatUnavailable(f"{at}: the answer is not a JSON object")
        return chat

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, also of a response that does not say how long it is. Raises ValueError if it is too long."""
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                raise ValueError(f"more than {self._max_bytes} bytes")
        return bytes(body)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
