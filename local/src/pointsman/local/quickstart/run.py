"""The stages of a quick start, in the order a person sees them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pointsman.api.protocol.names import Role
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.resources import LLM_SERVICES, PLANNER_POLICIES
from pointsman.local.cache import cache_directory
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.errors import LocalError
from pointsman.local.memory import PeakMemory
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.examples import (
    SHIFT_SERVICE,
    STALL_SERVICE,
    read_example,
    shift_service,
    stall_service,
    with_model,
)
from pointsman.local.quickstart.interruption import whole
from pointsman.local.quickstart.narrator import Narrator, Picture
from pointsman.local.quickstart.options import Options
from pointsman.local.quickstart.reference import plain_endpoint
from pointsman.local.quickstart.report import PlanReport, Report, Sides, in_home
from pointsman.local.quickstart.shift import (
    SHIFT_CLIENTS,
    Turn,
    measure,
    read_policy,
    shift_load,
    with_objectives,
    with_prometheus,
)
from pointsman.local.quickstart.stages import LONG, MIX, SHORT, SHOWN_REQUESTS, STALL_STREAMS, TITLES
from pointsman.local.quickstart.table import TrafficView, latency_table, line, plan_line, render
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import (
    Api,
    Endpoint,
    Interference,
    Mix,
    Prompt,
    Record,
    Scenario,
    closed_loop,
    compare,
    interfere,
    prompts,
    recent,
    running_load,
    summarise,
)

NAMESPACE: Final = "default"
CLIENTS: Final = 6
_READY_S: Final = 180.0
_SCALE_S: Final = 120.0
_WINDOW_S: Final = 10.0
_LOOK_S: Final = 0.5
_MEMORY_S: Final = 2.0


class QuickStart:
    """One quick start. ``report`` fills as it goes, so that an interrupted run still tells what it found."""

    def __init__(self, options: Options, narrator: Narrator, *, started_s: float) -> None:
        self.report = Report()
        self._options = options
        self._narrator = narrator
        self._started_s = started_s
        self._memory = PeakMemory()
        self._ready_seconds = _READY_S + options.start_seconds
        self._scale_seconds = _SCALE_S + options.start_seconds
        self._records: list[Record] = []
        self._view: ServiceView | None = None
        self._quiet = False  # during a latency measurement nothing else runs here
        self.kubeconfig: Path | None = None
        self.programs: Path | None = None  # the folder with kubectl
        self.gateway_url: str | None = None
        self.served_name: str | None = None
        self.prometheus_url: str | None = None
        self.left_running = False

    async def run(self) -> None:
        """All stages. Raises LocalError where it cannot go on; what merely went wrong is in ``report.failures``."""
        narrator, report = self._narrator, self.report
        async with self._stage("prepare"):
            environment = await asyncio.to_thread(ensure_engine_environment, report=narrator.say)
            tiny = await asyncio.to_thread(ensure_model, environment, ModelSize.TINY, report=narrator.say)
            small = await asyncio.to_thread(ensure_model, environment, ModelSize.SMALL, report=narrator.say)
            narrator.result(f"everything is in {in_home(cache_directory())}")
        example = with_model(read_example(), tiny)
        # Only one that is kept needs a name; two runs at once on one computer are no trouble to each other.
        name = "quickstart" if self._options.keep else None
        self._cluster = LocalCluster(
            name,
            keep=self._options.keep,
            start_seconds=self._options.start_seconds,
            prometheus=self._options.prometheus,
            report=narrator.say,
        )
        report.start_seconds = self._options.start_seconds
        started, unfinished, interrupted = False, True, False
        try:
            async with self._stage("cluster"):
                await whole(self._cluster.start)
                started = True  # one that is there already is somebody else's, and must not be ended here
                self.kubeconfig, self.programs = self._cluster.kubeconfig, self._cluster.kubectl_path.parent
                narrator.explain(f"export PATH={self.programs}:$PATH KUBECONFIG={self.kubeconfig}")
                narrator.result("API server, etcd, scheduler and controllers are running, without containers or root")
            async with self._stage("install"):
                await whole(self._cluster.install)
                if self._cluster.prometheus is not None:
                    self.prometheus_url = self._cluster.prometheus.url
                    narrator.explain(f"Prometheus: {self.prometheus_url}")
                narrator.result("operator, planner and message queue (NATS) are running")
            async with (
                await Kube.connect(self._cluster.kubeconfig, field_manager="pointsman-quickstart") as kube,
                Observer(kube, NAMESPACE, example["metadata"]["name"]) as observer,
                self._sampling(),
            ):
                await self._serve(kube, observer, example)
                if not self._options.quick:
                    await self._stall(kube, example, small)
                    await self._shift(kube, example, small)
            unfinished = False
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:
            report.stage_seconds = narrator.stage_seconds
            report.peak_pss_mib = round(self._memory.peak_mib, 1)
            # A run that failed is the one to look into; one that was interrupted is to be gone.
            self.left_running = started and self._options.keep and not interrupted
            if started and not self.left_running:
                await whole(self._cluster.stop)
            report.total_seconds = round(time.monotonic() - self._started_s, 2)
            report.passed = not unfinished and not report.failures

    async def _serve(self, kube: Kube, observer: Observer, example: dict[str, Any]) -> None:
        """The stages on the example's service."""
        narrator = self._narrator
        self.served_name = served_name = example["spec"]["model"]["servedName"]
        async with self._stage("service"):
            narrator.explain("$ kubectl apply -f examples/quickstart.yaml")
            await kube.apply(LLM_SERVICES, example, NAMESPACE)
            async with self._looking(observer):
                view = await wait_until(
                    observer, "a routable gateway", _answers, timeout_seconds=self._ready_seconds, on_view=self._see
                )
                assert view.gateway_url is not None
                self.gateway_url = url = view.gateway_url
                async with Endpoint(url, served_name) as endpoint:
                    await self._first_token(endpoint)
                await wait_until(
                    observer,
                    "a Ready service",
                    lambda view: view.ready,
                    timeout_seconds=self._ready_seconds,
                    on_view=self._see,
                )
            narrator.result(
                f"serving; first token {self.report.first_token_seconds:.1f} s after the start of the command"
            )
        async with Endpoint(url, served_name) as endpoint:
            asked = list(islice(prompts(MIX, seed=self._options.seed), SHOWN_REQUESTS))
            async with self._stage("traffic"):
                async with self._looking(observer):
                    answers = await closed_loop(endpoint, asked, clients=CLIENTS, on_record=self._records.append)
                found = summarise(answers)
                narrator.result(
                    f"{found.requests - found.failed_requests} of {found.requests} answered; prompts computed by the "
                    f"prefill worker: {found.remote_prefills}, by decode workers: {found.local_prefills}"
                )
            self._count()
            async with self._stage("exactness"):
                await self._exactness(Path(example["spec"]["model"]["source"].removeprefix("file://")), answers)
            if not self._options.quick:
                async with self._stage("scaling"):
                    await self._scaling(observer, endpoint, example)

    async def _first_token(self, endpoint: Endpoint) -> None:
        record = await endpoint.send(Prompt(0, Api.CHAT, True, 16, text="Which track does the night train take?"))
        if not record.served or record.ttft_seconds is None:
            raise LocalError(f"the first request was not answered: {record.error}")
        self._records.append(record)
        self.report.first_token_seconds = round(record.started_s + record.ttft_seconds - self._started_s, 2)
        self._narrator.explain(f"the model's weights are random, and so is its answer: {record.text!r}")

    async def _exactness(self, model: Path, answers: list[Record]) -> None:
        asked = [record.prompt for record in sorted(answers, key=lambda record: record.prompt.index)]
        async with plain_endpoint(self._cluster, model, "float32") as reference:
            alone = await closed_loop(reference, asked, clients=1)
            together = await closed_loop(reference, asked, clients=8)
        itself, ours = compare(alone, together), compare(alone, answers)
        if not itself.exact:
            self._fail(
                f"the plain server differs from itself in {len(itself.differences)} of {itself.compared} prompts"
            )
        self.report.compared_prompts = ours.compared
        self.report.token_exact = itself.exact and ours.exact
        self._narrator.result(
            f"{ours.compared - len(ours.differences)} of {ours.compared} answers have exactly the same tokens"
        )
        for difference in ours.differences[:3]:
            self._fail(f"prompt {difference.index} ({difference.path} prefill): {difference.detail}")

    async def _scaling(self, observer: Observer, endpoint: Endpoint, example: dict[str, Any]) -> None:
        pool = f"{example['metadata']['name']}-{Role.DECODE.label}"
        before = int(example["spec"]["pools"]["decode"]["replicas"])
        self.report.scaled = [str(before)]
        load = prompts(Mix(lengths=(SHORT, LONG), max_tokens=range(64, 129)), seed=self._options.seed + 1)
        before_scaling = len(self._records)
        async with (
            self._looking(observer),
            running_load(endpoint, load, clients=4, on_record=self._records.append) as traffic,
        ):
            for size in (before + 1, before):
                self._narrator.explain(f"$ kubectl scale wpool {pool} --replicas={size}")
                await asyncio.to_thread(
                    self._cluster.kubectl, "scale", "wpool", pool, f"--replicas={size}", "-n", NAMESPACE
                )
                await wait_until(
                    observer,
                    f"{size} decode workers",
                    partial(_has_decode_workers, size=size),
                    timeout_seconds=self._scale_seconds,
                    on_view=self._see,
                )
                self.report.scaled.append(str(size))
                await traffic.answered(8, timeout_seconds=self._scale_seconds)
        found = summarise(self._records[before_scaling:])
        self._narrator.result(
            f"{' -> '.join(self.report.scaled)} decode workers; meanwhile {found.requests} requests, "
            f"{found.failed_requests} failed"
        )
        self._count()

    async def _stall(self, kube: Kube, example: dict[str, Any], model: Path) -> None:
        """Worst inter-token latency while long prompts arrive: with P/D, then on one plain server."""
        narrator, report = self._narrator, self.report
        service = stall_service(example, model)
        async with self._stage("stall"), Observer(kube, NAMESPACE, STALL_SERVICE) as observer:
            await kube.apply(LLM_SERVICES, service, NAMESPACE)
            view = await wait_until(
                observer, "a Ready service", lambda view: view.ready, timeout_seconds=self._ready_seconds
            )
            assert view.gateway_url is not None
            scenario = Scenario(streams=STALL_STREAMS, arrivals=3, seed=self._options.seed)
            async with Endpoint(view.gateway_url, service["spec"]["model"]["servedName"]) as endpoint:
                separated = await self._interfere(endpoint, scenario)
            await kube.delete(LLM_SERVICES, STALL_SERVICE, NAMESPACE)
            await wait_until(
                observer, "the end of the service", lambda view: not view.workers, timeout_seconds=self._ready_seconds
            )
            async with plain_endpoint(self._cluster, model, "bfloat16") as reference:
                single = await self._interfere(reference, scenario)
            narrator.show(
                latency_table(
                    [
                        ("one prefill, one decode worker", separated.itl, separated.ttft),
                        ("one plain vLLM server", single.itl, single.ttft),
                    ]
                )
            )
            report.worst_itl_ms = Sides(pd=_rounded(separated.itl.worst_ms), single=_rounded(single.itl.worst_ms))
            narrator.result(report.paused())
        report.p99_itl_ms = Sides(pd=_rounded(separated.itl.p99_ms), single=_rounded(single.itl.p99_ms))
        report.long_prompt_ttft_p50_ms = Sides(pd=_rounded(separated.ttft.p50_ms), single=_rounded(single.ttft.p50_ms))
        if separated.arrivals.remote_prefills < scenario.arrivals:
            self._fail(f"only {separated.arrivals.remote_prefills} of {scenario.arrivals} long prompts went to prefill")

    async def _interfere(self, endpoint: Endpoint, scenario: Scenario) -> Interference:
        # The first request of a pair of engines shakes hands, and the first long one touches fresh memory.
        warmed = await interfere(endpoint, Scenario(streams=1, arrivals=1, prompt_tokens=600, seed=-1))
        self._quiet = True
        try:
            measured = await interfere(endpoint, scenario)
        finally:
            self._quiet = False
        for error in (*warmed.errors, *measured.errors):
            self._fail(f"a request of the latency stage failed at {endpoint.base_url}: {error}")
        return measured

    async def _shift(self, kube: Kube, example: dict[str, Any], model: Path) -> None:
        """The planner, Active, while the load shifts from short to long prompts and back."""
        narrator, service = self._narrator, shift_service(example, model)
        async with self._stage("shift"), Observer(kube, NAMESPACE, SHIFT_SERVICE) as observer:
            await kube.apply(LLM_SERVICES, service, NAMESPACE)
            async with self._looking(observer):
                view = await wait_until(
                    observer, "a Ready service", lambda view: view.ready, timeout_seconds=self._ready_seconds
                )
                assert view.gateway_url is not None
                async with Endpoint(view.gateway_url, service["spec"]["model"]["servedName"]) as endpoint:
                    measured = await measure(endpoint, seed=self._options.seed, on_record=self._records.append)
                    narrator.explain(
                        f"without a policy: {measured.long_ttft_ms:.0f} ms to the first token of a long prompt, "
                        f"{measured.short_tpot_ms:.0f} ms a token for {SHIFT_CLIENTS} clients with short ones"
                    )
                    policy = with_objectives(read_policy(), measured.objectives)
                    if self.prometheus_url is not None:
                        policy = with_prometheus(policy, self.prometheus_url)
                    await self._give_policy(kube, policy)
                    await shift_load(
                        observer,
                        endpoint,
                        seed=self._options.seed,
                        on_turn=self._say_turn,
                        on_view=self._see_plans,
                        on_record=self._records.append,
                    )
            narrator.result(self.report.switched())
        self._count()

    async def _give_policy(self, kube: Kube, policy: dict[str, Any]) -> None:
        """As a user does it; the policy file's objectives are those measured."""
        narrator, name, objectives = self._narrator, policy["metadata"]["name"], policy["spec"]["objectives"]
        narrator.explain(
            f"$ kubectl apply -f examples/quickstart-policy.yaml     # with TTFT {objectives['ttftMs']:g} ms, "
            f"TPOT {objectives['tpotMs']:g} ms"
            + (f", metrics from {self.prometheus_url}" if self.prometheus_url is not None else "")
        )
        await kube.apply(PLANNER_POLICIES, policy, NAMESPACE)
        reference = json.dumps({"spec": {"policyRef": {"name": name}}})
        narrator.explain(f"$ kubectl patch llms {SHIFT_SERVICE} --type=merge -p '{reference}'")
        patch = ("patch", "llms", SHIFT_SERVICE, "-n", NAMESPACE, "--type=merge", "-p", reference)
        await asyncio.to_thread(self._cluster.kubectl, *patch)

    def _say_turn(self, turn: Turn) -> None:
        lengths = turn.mix.lengths[0]
        self._narrator.explain(f"{SHIFT_CLIENTS} clients: {turn.title}, {lengths.start} to {lengths.stop} tokens")

    def _see_plans(self, view: ServiceView) -> None:
        """Keep the planner's plans and thresholds for the report, and print each plan once."""
        known = {plan.name for plan in self.report.plans}
        for plan in view.plans:
            if plan.metadata.name not in known:
                self._narrator.explain(plan_line(plan))
        self.report.plans = [PlanReport.of(plan) for plan in view.plans]
        routing = view.service.status.routing if view.service is not None else None
        threshold = routing.max_local_prefill_tokens if routing is not None else None
        if threshold is not None and threshold not in self.report.thresholds[-1:]:
            self.report.thresholds.append(threshold)
        self.report.switch_seconds = [
            switch.status.seconds for switch in view.switches if switch.status.seconds is not None
        ]
        self._see(view)

    def _stage(self, key: str) -> AbstractAsyncContextManager[None]:
        return self._narrator.stage(key, TITLES[key])

    # --- what runs beside the stages ---

    @asynccontextmanager
    async def _looking(self, observer: Observer) -> AsyncIterator[None]:
        """Keep the live table fresh while the block runs."""

        async def look() -> None:
            while True:
                try:
                    self._see(await observer.look(events=5))
                except KubeError as error:
                    self._narrator.say(f"the API server does not answer: {error}")
                await asyncio.sleep(_LOOK_S)

        task = asyncio.create_task(look())
        try:
            async with self._narrator.live(self._picture):
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[None]:
        """Watch the memory, but not in the middle of a latency measurement."""

        async def sample() -> None:
            while True:
                if not self._quiet:
                    await asyncio.to_thread(lambda: self._memory.sample(self._cluster.processes()))
                await asyncio.sleep(_MEMORY_S)

        task = asyncio.create_task(sample())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _see(self, view: ServiceView) -> None:
        events = view.events or (self._view.events if self._view is not None else ())
        self._view = replace(view, events=events)

    def _picture(self) -> Picture:
        lately = recent(self._records, now_s=time.monotonic(), window_seconds=_WINDOW_S)
        traffic = TrafficView(summarise(self._records), summarise(lately), _WINDOW_S) if self._records else None
        return render(self._view, traffic), line(self._view, traffic)

    def _count(self) -> None:
        summary, report = summarise(self._records), self.report
        report.requests, report.failed_requests = summary.requests, summary.failed_requests
        report.remote_prefills, report.local_prefills = summary.remote_prefills, summary.local_prefills
        report.ttft_p50_ms = _rounded(summary.ttft.p50_ms)
        for record in self._records:
            if not record.served:
                self._fail(f"prompt {record.prompt.index} ({record.prompt.api}) was not answered: {record.error}")
        if not summary.remote_prefills or not summary.local_prefills:
            self._fail(
                f"prefills: {summary.local_prefills} local and {summary.remote_prefills} remote; both must occur"
            )

    def _fail(self, sentence: str) -> None:
        if sentence not in self.report.failures:
            self.report.failures.append(sentence)


def _answers(view: ServiceView) -> bool:
    return view.gateway_url is not None and bool(view.routable(Role.DECODE))


def _has_decode_workers(view: ServiceView, *, size: int) -> bool:
    decode = [worker for worker in view.workers if worker.role is Role.DECODE]
    return len(decode) == len(view.routable(Role.DECODE)) == size


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
