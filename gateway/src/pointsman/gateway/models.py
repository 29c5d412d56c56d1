"""Finds out what each decode worker serves: model, tokenizer files by content hash, proof of the rendering."""

import asyncio
import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import ValidationError

from pointsman.api.protocol.control import MODEL_FILES_PATH, MODEL_PATH, ModelFile, ModelInfo
from pointsman.gateway.control_tokens import ControlTokens
from pointsman.gateway.errors import RequestInvalid
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.processor import PROBE_CHATS, PROBE_TEXTS, Model, TextProcessor, TokenizerUnusable
from pointsman.gateway.types import Worker, WorkerKey

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 * 2**20
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0
_FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


class ModelUnavailable(RuntimeError):
    """A worker did not tell what it serves, or told something wrong; tried again later."""


class ModelCatalog:
    """Keeps every decode worker of the fleet annotated with its model.

    ``folder`` holds files as ``<tokenizer digest>/<name>``; they are written once and checked against their hash.
    """

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession, *, folder: Path, control_token: str) -> None:
        self._fleet = fleet
        self._session = session
        self._folder = folder
        self._tokens = ControlTokens(control_token)
        self._processors: dict[str, TextProcessor | str] = {}  # digest -> processor, or why there is none
        self._loading = asyncio.Lock()
        self._running: dict[WorkerKey, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Start finding out about workers whose model is unknown; stop for those that left. Called on every change."""
        wanted = {worker.key: worker for worker in self._fleet.needs_model()}
        for key in self._running.keys() - wanted.keys():
            self._running.pop(key).cancel()
        for key in wanted.keys() - self._running.keys():
            self._running[key] = asyncio.create_task(self._find_out(wanted[key]), name=f"model of {wanted[key].name}")

    async def stop(self) -> None:
        """Cancel what runs."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _find_out(self, worker: Worker) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            try:
                model = await self.model_of(worker)
                break
            except (ModelUnavailable, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("model unknown", extra={"worker": worker.name, "why": str(error) or type(error).__name__})
            except Exception:
                # A defect, as loud as can be; but a worker that is never asked again would never serve.
                log.exception("model unknown because of an internal error", extra={"worker": worker.name})
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MOST_S)
        self._fleet.set_model(worker.key, model)
        log.info(
            "model known",
            extra={
                "worker": worker.name,
                "model": model.info.served_name,
                "tokens": model.text_verified,
                "chat_tokens": model.chat_verified,
                "doubt": model.doubt,
            },
        )

    async def model_of(self, worker: Worker) -> Model:
        """What ``worker`` serves. Raises ModelUnavailable, aiohttp.ClientError or TimeoutError."""
        try:
            info = ModelInfo.model_validate_json(await self._get(worker, MODEL_PATH))
        except ValidationError as error:
            raise ModelUnavailable(f"{MODEL_PATH} of {worker.name} is no ModelInfo: {error}") from error
        async with self._loading:
            if info.digest not in self._processors:
                self._processors[info.digest] = await self._load(worker, info)
        processor = self._processors[info.digest]
        if isinstance(processor, str):
            return Model(info, None, text_verified=False, chat_verified=False, doubt=processor)
        return await self._verify(worker, info, processor)

    async def _load(self, worker: Worker, info: ModelInfo) -> TextProcessor | str:
        folder = self._folder / _checked("digest", info.digest, _SHA256)
        folder.mkdir(parents=True, exist_ok=True)
        for file in info.files:
            await self._fetch(worker, file, folder / _checked("file name", file.name, _FILE_NAME))
        try:
            return await asyncio.to_thread(TextProcessor.load, folder)
        except TokenizerUnusable as error:
            return str(error)

    async def _fetch(self, worker: Worker, file: ModelFile, path: Path) -> None:
        digest = _checked("sha256", file.sha256, _SHA256)
        if path.exists() and await asyncio.to_thread(_sha256, path) == digest:
            return
        if file.bytes > MAX_FILE_BYTES:
            raise ModelUnavailable(f"{file.name} of {worker.name} has {file.bytes} bytes; at most {MAX_FILE_BYTES}")
        data = await self._get(worker, f"{MODEL_FILES_PATH}/{digest}")
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise ModelUnavailable(f"{file.name} of {worker.name} has sha256 {found}; it announced {digest}")
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        part.replace(path)

    async def _verify(self, worker: Worker, info: ModelInfo, processor: TextProcessor) -> Model:
        """Tokenise the probes on both sides."""
        doubts = []
        text_verified = chat_verified = True
        for text in PROBE_TEXTS:
            theirs = await self._engine_tokens(worker, {"model": info.served_name, "prompt": text})
            if theirs != processor.encode(text):
                text_verified = chat_verified = False
                doubts.append("the engine tokenises texts differently")
                break
        if info.parses_chat:
            chat_verified = False
            doubts.append("the engine parses the output of chats")
        if text_verified and not processor.has_chat_template:
            chat_verified = False
            doubts.append("the model has no chat template of its own")
        if chat_verified:
            for number, messages in enumerate(PROBE_CHATS):
                body = {"model": info.served_name, "messages": messages}
                theirs = await self._engine_tokens(worker, body)
                try:
                    ours: list[int] | None = processor.render(messages)
                except RequestInvalid:
                    ours = None  # a template may refuse system messages; then both sides must
                if theirs != ours:
                    chat_verified = False
                    doubts.append(f"the engine renders probe conversation {number} differently")
                    break
        return Model(info, processor, text_verified, chat_verified, "; ".join(doubts))

    async def _engine_tokens(self, worker: Worker, body: dict[str, Any]) -> list[int] | None:
        """Ids by the engine's own ``/tokenize``; None when it refuses this input."""
        async with self._session.post(f"{worker.url}/tokenize", json=body) as response:
            if response.status == 400:
                return None
            if response.status != 200:
                raise ModelUnavailable(f"/tokenize of {worker.name} answered {response.status}")
            return list((await response.json())["tokens"])

    async def _get(self, worker: Worker, path: str) -> bytes:
        async with self._session.get(f"{worker.url}{path}", headers=self._tokens.headers(worker.key)) as response:
            if response.status == 401:
                self._tokens.refused(worker.key)
            if response.status != 200:
                raise ModelUnavailable(f"{path} of {worker.name} answered {response.status}")
            return await response.read()


def _checked(what: str, value: str, pattern: re.Pattern[str]) -> str:
    """``value`` comes from the network and becomes part of a path."""
    if not pattern.match(value):
        raise ModelUnavailable(f"{what} {value!r} is not allowed in the description of a worker")
    return value


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
