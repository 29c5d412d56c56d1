"""The small engine under the real code beside an engine keeps the contracts of the real worker."""

from collections.abc import AsyncIterator

import pytest

from contracts.control_api import *  # noqa: F403
from contracts.control_api import Controlled
from contracts.engine_api import (  # not its model part, which is real code over a real engine's files
    Serving,
    client,
    test_a_body_that_is_no_request_is_the_clients_mistake,
    test_a_chat_stream_begins_with_the_role_and_ends_with_done,
    test_a_stream_brings_token_ids_one_finish_reason_usage_and_done,
    test_a_whole_answer_is_the_streams_answer,
    test_prompts_and_chats_are_tokenised,
    test_the_answer_names_the_worker_and_where_the_prompt_was_prefilled,
)
from fixtures.asgi_over_http import served
from fixtures.workers import TOKEN, Worker, settings, worker
from pointsman.api.protocol.names import Role

__all__ = [
    "client",
    "test_a_body_that_is_no_request_is_the_clients_mistake",
    "test_a_chat_stream_begins_with_the_role_and_ends_with_done",
    "test_a_stream_brings_token_ids_one_finish_reason_usage_and_done",
    "test_a_whole_answer_is_the_streams_answer",
    "test_prompts_and_chats_are_tokenised",
    "test_the_answer_names_the_worker_and_where_the_prompt_was_prefilled",
]


@pytest.fixture
async def running() -> AsyncIterator[Worker]:
    async with worker(settings("small"), role=None) as made:
        await made.take_role(None)
        yield made


@pytest.fixture
async def controlled(running: Worker) -> AsyncIterator[Controlled]:
    async with served(running.app) as server:
        yield Controlled(server.url, TOKEN)


@pytest.fixture
async def serving(running: Worker, controlled: Controlled) -> Serving:
    await running.take_role(Role.DECODE)
    return Serving(controlled.url, controlled.token, running.sidecar.settings.served_name)
