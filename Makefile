# Two commands for users: `make quickstart` and `make test`. Everything else is for those who work on Pointsman.
PYTHON ?= python3.11
# All that must be on PATH beside make and git: README.md, "What a computer needs", lists the same, and .ci/run tests with
# nothing else.
PROGRAMS := $(PYTHON) sh cat dirname env find grep lscpu mkdir readlink rm sed sleep touch uname
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --frozen --quiet
ARGS ?=
# Two processes; the tests of a file stay together with what they share. ARGS="-n 0" runs them in one.
PARALLEL := -n 2 --dist loadfile

.PHONY: help programs-needed computer commit-hook quickstart quickstart-picture quickstart-elastic quickstart-multimodal test lint unit browser programs integration engine messages verify verify-path verify-elastic verify-multimodal verify-operator crds dashboards tuning bench bench-foundation bench-request-path bench-planner bench-planner-dynamo bench-scraping bench-predicted bench-overload bench-seasonal bench-kv-feed bench-elastic bench-elastic-gpu bench-elastic-paper bench-elastic-planned bench-multimodal bench-streaming bench-report replays format sync clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

programs-needed: # their names, for .ci/run
	@echo $(PROGRAMS)

computer: # fails with one sentence that names the missing programs
	@missing=; for each in $(PROGRAMS); do command -v "$$each" >/dev/null || missing="$$missing $$each"; done; \
	test -z "$$missing" || { echo "Pointsman needs on PATH, and did not find:$$missing (README.md, 'What a computer needs', names the packages)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	|| { echo "Pointsman needs Python 3.11, but $(PYTHON) is another version or does not start; make PYTHON=/path/to/python3.11 names the right one." >&2; exit 1; }
	@test -x "$(UV)" || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	|| { echo "Pointsman needs the modules venv and ensurepip of $(PYTHON); on Debian the package python3.11-venv has them." >&2; exit 1; }

$(UV): | computer
	@command -v uv >/dev/null || { echo "installing uv into .tools"; $(PYTHON) -m venv .tools && .tools/bin/pip install --quiet uv; }

commit-hook: # checks the subject of a commit, unless git has other hooks; a copy without git has none, and needs none
	@test ! -e .git || git config core.hooksPath >/dev/null 2>&1 || git config core.hooksPath .ci/hooks 2>/dev/null || true

sync: computer $(UV) commit-hook ## install the project's own environment (.venv)
	@$(UV) sync --frozen --quiet --python $(PYTHON)

quickstart: sync ## the main job on real parts, explained while it runs (ARGS="--help")
	@$(RUN) pointsman quickstart $(ARGS)

quickstart-picture: sync ## record a run of the quick start for the README: needs a quiet computer
	@$(RUN) python -m pointsman.local.quickstart.picture $(ARGS)

quickstart-elastic: sync ## an elastic group on real parts, its groups shown while they change (ARGS="--help")
	@$(RUN) pointsman quickstart-elastic $(ARGS)

quickstart-multimodal: sync ## images on an encode, a prefill and a decode worker, real parts (ARGS="--help")
	@$(RUN) pointsman quickstart-multimodal $(ARGS)

test: lint unit integration engine browser ## all tests, as CI runs them

lint: sync ## ruff, mypy --strict, import contracts, lock file, a minute
	@$(UV) lock --check --quiet
	@$(RUN) ruff check
	@$(RUN) ruff format --check --quiet
	@$(RUN) mypy
	@PYTHONPATH= $(RUN) lint-imports --no-cache

unit: sync ## pure cores and property tests, four minutes on two cores (ARGS="-n 0": in one process)
	@$(RUN) pytest tests/unit $(PARALLEL) $(ARGS)

browser: sync ## reports and pictures in headless Chromium, which the first run fetches (70 MB; x86_64)
	@$(RUN) pointsman local binaries chromium-headless-shell >/dev/null
	@$(RUN) pytest tests/browser $(ARGS)

programs: sync  # built before the tests: a build takes longer than a test may
	@$(RUN) pointsman local binaries etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm nats-server prometheus promtool >/dev/null

integration: programs ## real control plane, NATS and our processes
	@$(RUN) pytest tests/integration -m "not verify" $(PARALLEL) $(ARGS)

engine: programs ## real vLLM on CPU, P/D over NIXL
	@$(RUN) pointsman local engine >/dev/null
	@$(RUN) pytest tests/engine -m "not verify" $(ARGS)

crds: sync ## write crds/*.yaml, the chart's copy and docs/reference/api.md from the models
	@$(RUN) python -m pointsman.api.schema

dashboards: sync ## write the chart's Grafana dashboards from charts/dashboards
	@$(RUN) python -m charts.dashboards

tuning: sync ## write docs/planner/tuning.md from the planner's constants
	@$(RUN) python -m pointsman.planner.tuning_page

messages: sync ## every text that a user reads, with what docs/reference/style.md says against it
	@PYTHONPATH=tests:. $(RUN) python -m messages

format: sync ## format and mend what ruff can mend
	@$(RUN) ruff check --fix --quiet; $(RUN) ruff format --quiet

verify: programs ## the long forms: hundreds of prompts, kill rounds; writes bench/results/verify.json
	@$(RUN) pytest tests/integration tests/engine -m verify --timeout 3600 $(ARGS)

verify-path: programs ## the long forms of the request path: 100 000 hostile requests, exactness, kills; writes the same file
	@$(RUN) pytest tests/integration tests/engine -m verify_path --timeout 3600 $(ARGS)

verify-elastic: programs ## the long form of elastic groups: parts killed at 50 seeded points; writes the same file
	@$(RUN) pytest tests/engine -m verify_elastic --timeout 3600 $(ARGS)

verify-multimodal: programs ## the long forms of images: kills of encode workers, of transfers and of broadcasts; writes the same file
	@$(RUN) pytest tests/integration tests/engine -m verify_multimodal --timeout 3600 $(ARGS)

verify-operator: programs ## the long forms of the operator: killed at hundreds of seeded points; writes the same file
	@$(RUN) pytest tests/integration tests/engine -m verify_operator --timeout 3600 $(ARGS)

BENCHES := bench-foundation bench-scraping bench-streaming bench-request-path bench-overload bench-predicted bench-seasonal bench-kv-feed bench-elastic bench-elastic-gpu bench-elastic-paper bench-elastic-planned bench-multimodal bench-planner bench-planner-dynamo

bench: ## all benchmarks and their report, hours; ends with an error if one did or a target of the last is missed
	@failed=0; for each in $(BENCHES); do $(MAKE) $$each || failed=1; done; $(MAKE) bench-report; exit $$failed

bench-foundation: sync ## first token, whole run, memory and stalls; writes bench/results/foundation.json
	@$(RUN) python -m bench.foundation $(ARGS)

bench-request-path: sync ## speed of the KV index (compared with Dynamo's), block hashes and routing, five minutes; writes bench/results/request_path.json
	@$(RUN) python -m bench.request_path --uv $(UV) $(ARGS)

bench-streaming: sync ## running streams without and with a prefill token budget, real engine; writes bench/results/streaming.json
	@$(RUN) python -m bench.streaming $(ARGS)

bench-planner: sync ## our planner beside others in our simulator, hours of two cores; ours alone more than an hour (ARGS="--jobs 2", ARGS="--jobs 2 --ours", ARGS="--only '*on 6 GPUs'": six fixed GPUs alone); writes bench/results/planner.json
	@$(RUN) python -m bench.planner.simulator_bench $(ARGS)

bench-scraping: sync ## one planner reads the metrics of a thousand workers, directly and from Prometheus, a minute; writes bench/results/scraping.json
	@$(RUN) python -m bench.planner.scraping $(ARGS)

bench-predicted: sync ## the simulator's prediction beside the real engine; writes bench/results/predicted.json
	@$(RUN) python -m bench.predicted $(ARGS)

bench-overload: sync ## an overload without and with flow control, real engines; writes bench/results/overload.json
	@PYTHONPATH=tests:. $(RUN) python -m bench.overload $(ARGS)

bench-kv-feed: sync ## time until a gateway knows the caches of eight busy workers, two minutes; writes bench/results/kv_feed.json
	@PYTHONPATH=tests:. $(RUN) python -m bench.kv_feed $(ARGS)

bench-elastic: sync ## elastic groups: growing, shrinking, and goodput beside static groups, an hour (ARGS="--iterations-only": five minutes); writes bench/results/elastic.json
	@$(RUN) python -m bench.elastic $(ARGS)

bench-elastic-gpu: sync ## the elastic engine on an NVIDIA GPU: its tokens and times, ten minutes; nothing where there is no GPU (ARGS="--help"); writes bench/results/elastic_gpu.json
	@$(RUN) python -m bench.elastic.gpu $(ARGS)

bench-elastic-paper: sync ## LoongServe's evaluation in simulated time, with our manager, half an hour of a core (ARGS="--parts Mixed"); writes bench/results/elastic_paper.json
	@$(RUN) python -m bench.elastic.paper $(ARGS)

bench-elastic-planned: sync ## LoongServe's mixes over a day in simulated time, with the planner and with fixed instances, twenty minutes of a core (ARGS="--parts Mixed"); writes bench/results/elastic_planned.json
	@$(RUN) python -m bench.elastic.planned $(ARGS)

bench-multimodal: sync ## embeddings between workers by each transport, and input broadcasts between ranks in each mode, eleven minutes; writes bench/results/{embedding_transfer,input_broadcast}.json
	@failed=0; for each in transfer broadcast; do $(RUN) python -m bench.multimodal.$$each || failed=1; done; exit $$failed

bench-seasonal: sync ## rises that recur daily, with and without the seasonal forecast, half an hour (ARGS="--parts constant"); writes bench/results/seasonal.json
	@$(RUN) python -m bench.planner.seasonal $(ARGS); measured=$$?; $(RUN) python -m bench.report; exit $$measured

replays: sync ## replay the example policies; writes docs/reports/replays
	@$(RUN) python -m bench.replays $(ARGS)

bench-planner-dynamo: sync ## our planner beside Dynamo's in NVIDIA's simulator, hours (ARGS="--seconds 300": a piece; "--parts strict ours": our planner alone)
	@PYTHONPATH=.:planner/src:serving/src:crds/src $(UV) run --frozen --quiet --python $(PYTHON) --project bench/planner/dynamo \
		python -m bench.planner.dynamo $(ARGS); measured=$$?; $(RUN) python -m bench.planner.evaluation_page; exit $$measured

bench-report: sync ## render bench/results to docs/reports/benchmarks.md and the pages of elastic groups
	@$(RUN) python -m bench.report

clean: ## remove environments and caches of this folder
	@rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache
