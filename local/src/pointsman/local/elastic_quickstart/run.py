"""The stages of the elastic quick start, in the order a person sees them."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from rich.text import Text

from pointsman.api.protocol.elastic import STATE_PATH, ElasticState
from pointsman.api.protocol.headers import CONTROL_TOKEN
from pointsman.api.protocol.names import ENGINE_PORT, SECRET_CONTROL_TOKEN, SECRET_SUFFIX, address_url
from pointsman.local.cluster import LocalCluster
from pointsman.local.elastic_quickstart.timeline import Moment, Timeline, words
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.errors import LocalError
from pointsman.local.quickstart.interruption import whole
from pointsman.local.quickstart.narrator import Narrator, Picture
from pointsman.local.quickstart.reference import beside_plain_server
from pointsman.local.traffic import Endpoint, Mix, Prompt, Record, closed_loop, prompts, summarise

EXAMPLE: Final = Path(__file__).parents[5] / "examples" / "elastic-quickstart.yaml"
NAMESPACE: Final = "default"
STAGES: Final = 7
SHORT, LONG = range(8, 60), range(1200, 1900)
MIX: Final = Mix(lengths=(SHORT, SHORT, LONG), max_tokens=range(16, 49), token_ids_share=0.3, vocabulary=range(94))
ALONE: Final = Mix(lengths=(LONG,), max_tokens=range(8, 17), token_ids_share=0.5, vocabulary=range(94))
LONG_REQUESTS: Final = 4
MIXED_REQUESTS: Final = 24
REQUESTS: Final = LONG_REQUESTS + MIXED_REQUESTS
CLIENTS: Final = 5
EVENTS: Final = frozenset(
    ("InstanceJoined", "InstanceDrained", "InstanceLost", "GroupScaledDown", "GroupScaledUp", "RequestRecomputed")
)
"""What the report tells; the others say what the group waits for while it starts."""
_READY_S: Final = 180.0
_LOOK_S: Final = 0.1


class ElasticQuickStart:
    """One run. What it found is in the attributes, also when it was interrupted."""

    def __init__(self, narrator: Narrator, *, seed: int, keep: bool) -> None:
        self._narrator = narrator
        self._seed = seed
        self._keep = keep
        self._records: list[Record] = []
        self._said = "no manager answers yet"
        self.timeline = Timeline()
        self.state: ElasticState | None = None
        self.failures: list[str] = []
        self.compared = self.different = 0
        self.scaled: list[int] = []
        self.events: dict[str, str] = {}
        self.kubeconfig: Path | None = None
        self.programs: Path | None = None
        self.left_running = False

    async def run(self) -> None:
        """All stages. Raises LocalError where it cannot go on."""
        narrator = self._narrator
        async with narrator.stage("prepare", "Setup of this computer, once: programs, engine, model"):
            environment = await asyncio.to_thread(ensure_engine_environment, report=narrator.say)
            model = await asyncio.to_thread(ensure_model, environment, ModelSize.SMALL, report=narrator.say)
        manifest = yaml.safe_load(EXAMPLE.read_text())
        manifest["spec"]["model"]["source"] = f"file://{model}"
        self._name = manifest["metadata"]["name"]
        cluster = self._cluster = LocalCluster("elastic" if self._keep else None, keep=self._keep, report=narrator.say)
        started = interrupted = False
        try:
            async with narrator.stage("cluster", "A real control plane, and the chart: operator, NATS"):
                await whole(cluster.start)
                started = True
                self.kubeconfig, self.programs = cluster.kubeconfig, cluster.kubectl_path.parent
                await whole(cluster.install)
            await self._serve(manifest)
            async with narrator.stage("exactness", "The same prompts to one plain vLLM server: the same tokens?"):
                await self._exactness(model)
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:
            self.left_running = started and self._keep and not interrupted
            if started and not self.left_running:
                await whole(cluster.stop)

    async def _serve(self, manifest: dict[str, Any]) -> None:
        narrator, replicas = self._narrator, int(manifest["spec"]["instances"]["replicas"])
        served_name = manifest["spec"]["model"]["servedName"]
        title = f"examples/{EXAMPLE.name}: {replicas} instances, a manager, a gateway"
        async with aiohttp.ClientSession() as session:
            async with narrator.stage("group", title):
                narrator.say(f"$ kubectl apply -f examples/{EXAMPLE.name}")
                await self._kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
                await self._until(replicas)
                url = await asyncio.to_thread(self._cluster.gateway_url, self._name)
                if url is None:
                    raise LocalError(f"the group {self._name} is ready and has no gateway")
                async with Endpoint(url, served_name) as endpoint, self._looking(session):
                    # Requests wait while the manager measures how long prefills take on 1, 2, … instances.
                    warm = await closed_loop(endpoint, islice(prompts(MIX, seed=-1), 1), clients=1)
                    self._check(warm)
                for measured in self.state.latency_model if self.state else ():
                    seconds = measured.alpha_seconds + 1500 * measured.beta_seconds + 1500**2 * measured.gamma_seconds
                    narrator.say(
                        f"measured: a prompt of 1 500 tokens takes {seconds:.2f} s at degree {measured.degree}"
                    )
            alone = list(islice(prompts(ALONE, seed=self._seed), LONG_REQUESTS))
            mixed = [
                replace(prompt, index=LONG_REQUESTS + prompt.index)
                for prompt in islice(prompts(MIX, seed=self._seed), MIXED_REQUESTS)
            ]
            half = MIXED_REQUESTS // 2
            async with Endpoint(url, served_name) as endpoint:
                title = f"{LONG_REQUESTS} long prompts, one after another: the instances are free for them"
                async with narrator.stage("alone", title), self._looking(session):
                    await self._ask(endpoint, alone, clients=1)
                title = f"{half} long and short prompts mixed, {CLIENTS} clients"
                async with narrator.stage("mixed", title), self._looking(session):
                    await self._ask(endpoint, mixed[:half], clients=CLIENTS)
                title = f"{half} more, while the group is scaled from {replicas} to {replicas + 1} and back"
                async with narrator.stage("scaling", title), self._looking(session):
                    await asyncio.gather(self._ask(endpoint, mixed[half:], clients=CLIENTS), self._scale(replicas))
        self.events = await self._events()

    async def _ask(self, endpoint: Endpoint, asked: list[Prompt], *, clients: int) -> None:
        self._check(await closed_loop(endpoint, asked, clients=clients, on_record=self._records.append))

    def _check(self, records: list[Record]) -> None:
        self.failures += [
            f"prompt {record.prompt.index} was not answered: {record.error}" for record in records if not record.served
        ]

    async def _scale(self, replicas: int) -> None:
        for size in (replicas + 1, replicas):
            self._narrator.say(f"$ kubectl scale eg {self._name} --replicas={size}")
            await self._kubectl("scale", "eg", self._name, f"--replicas={size}")
            await self._until(size)
            self.scaled.append(size)

    async def _exactness(self, model: Path) -> None:
        found = await beside_plain_server(self._cluster, model, self._records)
        self.compared, self.different = found.compared, len(found.differences)
        self._narrator.say(f"{self.compared - self.different} of {self.compared} answers are token-exact")
        self.failures += [f"prompt {each.index}: {each.detail}" for each in found.differences[:3]]

    # --- what is seen ---

    async def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self._cluster.kubectl, "-n", NAMESPACE, *arguments, stdin=stdin)

    async def _until(self, instances: int) -> None:
        """Wait until the group says that so many instances work and no other is there."""
        deadline_s = time.monotonic() + _READY_S
        while True:
            found = json.loads(await self._kubectl("get", "eg", self._name, "-o", "json"))
            status = found.get("status", {})
            counts = status.get("instances", {})
            conditions = {each["type"]: each for each in status.get("conditions", [])}
            ready = conditions.get("Ready", {})
            settled = counts.get("existing") == counts.get("joined") == instances and not counts.get("draining")
            if settled and ready.get("status") == "True":
                return
            if time.monotonic() > deadline_s:
                raise LocalError(
                    f"the group was not ready with {instances} instances within {_READY_S:.0f} s: "
                    f"{ready.get('message', 'no message')}"
                )
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _looking(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Ask the manager again and again, and show what it says."""
        pod = json.loads(await self._kubectl("get", "pod", f"{self._name}-manager-0", "-o", "json"))
        secret = json.loads(await self._kubectl("get", "secret", self._name + SECRET_SUFFIX, "-o", "json"))
        token = base64.b64decode(secret["data"][SECRET_CONTROL_TOKEN]).decode()
        url = address_url("http", pod["status"]["podIP"], ENGINE_PORT) + STATE_PATH

        async def look() -> None:
            while True:
                try:
                    async with session.get(url, headers={CONTROL_TOKEN: f"Bearer {token}"}) as answer:
                        self.state = ElasticState.model_validate_json(await answer.read())
                    self.timeline.add(Moment.of(self.state, time.monotonic()))
                    self._said = words(self.state)
                except (aiohttp.ClientError, ValueError) as error:
                    self._said = f"the manager does not answer: {error}"
                await asyncio.sleep(_LOOK_S)

        task = asyncio.create_task(look())
        try:
            async with self._narrator.live(self._picture):
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _picture(self) -> Picture:
        done = f"{len(self._records)} of {REQUESTS} answered; {self._said}"
        return Text(f"      {done}", overflow="ellipsis", no_wrap=True), done

    async def _events(self) -> dict[str, str]:
        items = json.loads(await self._kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
        ours = [item for item in items if item["regarding"].get("kind") == "ElasticGroup"]
        of_it = (item for item in ours if item["regarding"]["name"] == self._name)
        return {item["reason"]: item["note"] for item in of_it if item["reason"] in EVENTS}

    # --- the report ---

    def lines(self) -> list[str]:
        """The report for a person, a finding a line."""
        summary = summarise(self._records)
        found = [
            f"answers        {self.compared - self.different} of {self.compared} have the tokens of one plain server",
            f"requests       {summary.requests} sent, {summary.failed_requests} failed",
        ]
        for phase in ("Prefill", "Decode"):
            degrees = ", ".join(map(str, sorted(self.timeline.degrees(phase)))) or "none was seen"
            found.append(f"{phase.lower():<14} degrees {degrees}")
        if self.scaled:
            sizes = " -> ".join(map(str, (self.scaled[-1], *self.scaled)))
            found.append(f"scaling        {sizes} instances under load")
        if self.state is not None:
            totals = self.state.totals
            moved = ", ".join(f"{reason} {tokens}" for reason, tokens in sorted(totals.moved_tokens.items()))
            found.append(f"groups         {totals.scaled_down} shrank after a prefill, {totals.scaled_up} grew")
            found.append(f"moved tokens   {moved}")
        found += [f"event          {reason}: {note}" for reason, note in sorted(self.events.items())]
        return found + [f"FAILED         {failure}" for failure in self.failures]
