"""The prefill worker's way to prompts with images, which are too large for the prefill queue.

The decode worker keeps the chat while it waits; see PREFILL_CHATS_PATH in pointsman.api.protocol.control.
"""

from typing import Any, Final
from urllib.parse import quote

import aiohttp

from pointsman.api.protocol.control import PREFILL_CHATS_PATH, chat_credential
from pointsman.workers.core.bodies import json_object
from pointsman.workers.errors import ChatUnavailableError
from pointsman.workers.settings import WorkerSettings

SILENCE_SECONDS: Final = 5.0  # of a decode worker that was asked for a chat
MAX_CHAT_BYTES: Final = 1 << 30


class ChatSource:
    """Gets chats from decode workers."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._token = settings.control_token.get_secret_value()
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, at: str, request_id: str) -> dict[str, Any]:
        """The chat of a request that waits at ``at`` (host and port). Raises ChatUnavailableError."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        credential = {"Authorization": f"Bearer {chat_credential(self._token, request_id)}"}
        try:
            url = f"http://{at}{PREFILL_CHATS_PATH}/{quote(request_id, safe='')}"
            async with self._session.get(url, headers=credential, allow_redirects=False) as response:
                if response.status != 200 or (response.content_length or 0) > MAX_CHAT_BYTES:
                    raise ChatUnavailableError(f"{at}: HTTP {response.status}, {response.content_length} bytes")
                chat = json_object(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise ChatUnavailableError(f"{at}: {error or type(error).__name__}") from error
        if chat is None:
            raise ChatUnavailableError(f"{at}: what came is no JSON object")
        return chat

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
