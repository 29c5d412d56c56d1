# Images of Pointsman:
#
#   docker build --target operator --tag registry.example.com/pointsman/operator:0.1.0 .
#   docker build --target planner  --tag registry.example.com/pointsman/planner:0.1.0 .
#   docker build --target gateway  --tag registry.example.com/pointsman/gateway:0.1.0 .
#   docker build --target worker   --tag registry.example.com/pointsman/worker:0.1.0 .      # on the official vLLM image
#   docker build --target worker   --build-arg BASE=vllm/vllm-openai-cpu:v0.32.0 …
#
# Control-plane images hold no torch. All run as user 65532 with a read-only root; /tmp (workers: /dev/shm and the hub's
# cache too) is all they write to. BuildKit is needed (docker 23 and newer, buildah 1.33 and newer).
ARG PYTHON=python:3.12-slim
ARG BASE=vllm/vllm-openai:v0.32.0
# Taken only where BASE has no NIXL.
ARG NIXL=nixl==1.5.1

# --- what the control-plane images are made from -----------------------------------------------------------------------
FROM ${PYTHON} AS workspace
RUN pip install --no-cache-dir uv==0.13.8
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/pointsman
WORKDIR /src
# Dependencies change seldom: this layer needs the lock file and the rooms' pyproject.toml only.
COPY pyproject.toml uv.lock ./
COPY crds/pyproject.toml crds/
COPY serving/pyproject.toml serving/
COPY process/pyproject.toml process/
COPY kube/pyproject.toml kube/
COPY operator/pyproject.toml operator/
COPY planner/pyproject.toml planner/
COPY gateway/pyproject.toml gateway/
COPY workers/pyproject.toml workers/
COPY local/pyproject.toml local/
COPY cli/pyproject.toml cli/
COPY images/environment.sh images/

FROM workspace AS build-operator
RUN images/environment.sh dependencies operator
COPY crds/src crds/src
COPY serving/src serving/src
COPY process/src process/src
COPY kube/src kube/src
COPY operator/src operator/src
RUN images/environment.sh room operator

FROM workspace AS build-planner
RUN images/environment.sh dependencies planner
COPY crds/src crds/src
COPY serving/src serving/src
COPY process/src process/src
COPY kube/src kube/src
COPY planner/src planner/src
RUN images/environment.sh room planner

FROM workspace AS build-gateway
RUN images/environment.sh dependencies gateway
COPY crds/src crds/src
COPY serving/src serving/src
COPY process/src process/src
COPY kube/src kube/src
COPY gateway/src gateway/src
RUN images/environment.sh room gateway

# --- control plane -------------------------------------------------------------------------------------------------------
FROM ${PYTHON} AS control-plane
ENV PATH=/opt/pointsman/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
RUN echo 'pointsman:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'pointsman:x:65532:' >> /etc/group
WORKDIR /tmp
USER 65532:65532

FROM control-plane AS operator
COPY --from=build-operator /opt/pointsman /opt/pointsman
EXPOSE 8080
CMD ["python", "-m", "pointsman.operator"]

FROM control-plane AS planner
COPY --from=build-planner /opt/pointsman /opt/pointsman
EXPOSE 8080
CMD ["python", "-m", "pointsman.planner"]

FROM control-plane AS gateway
COPY --from=build-gateway /opt/pointsman /opt/pointsman
EXPOSE 8000
CMD ["python", "-m", "pointsman.gateway"]

# --- worker: the engine's own image with our code beside the engine -----------------------------------------------------
FROM workspace AS build-worker
COPY crds/src crds/src
COPY serving/src serving/src
COPY process/src process/src
COPY workers/src workers/src
RUN for package in pointsman-api pointsman-serving pointsman-process pointsman-workers; do \
        uv build --wheel --out-dir /wheels --package "$package"; \
    done
# What vLLM does not bring, at the version of the lock file; the rest is the engine's own.
RUN uv export --quiet --frozen --no-dev --no-hashes --no-emit-workspace --package pointsman-workers \
    | grep -E '^(nats-py|xxhash)==' > /wheels/constraints.txt

FROM ${BASE} AS worker
ARG NIXL
USER root
# What the engine brings stays as it is; only what is missing is added. NIXL moves the KV.
RUN --mount=type=bind,from=build-worker,source=/wheels,target=/wheels \
    --mount=type=bind,from=build-worker,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    python="$(command -v python3)" \
    && install="uv pip install --no-cache --compile-bytecode --python $python --break-system-packages" \
    && $install --constraint /wheels/constraints.txt /wheels/*.whl \
    && { "$python" -c 'import nixl' || $install "$NIXL"; } \
    && { command -v python > /dev/null || ln -s "$python" /usr/local/bin/python; } \
    && echo 'pointsman:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'pointsman:x:65532:' >> /etc/group
# A read-only root keeps no byte code: without it each process of a worker compiles vLLM and torch at every start.
# (Some files of theirs are templates that do not compile.)
RUN python -c 'import vllm, nixl, pointsman.workers' \
    && python -c 'from importlib.metadata import entry_points as of; of(group="vllm.general_plugins")["pointsman"].load()' \
    && site="$(python -c 'from importlib.metadata import distribution as of; print(of("torch").locate_file(""))')" \
    && { python -m compileall -q -j 0 "$site" > /dev/null || true; }
ENV PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
EXPOSE 8000 8090 5600
ENTRYPOINT []
CMD ["python", "-m", "pointsman.workers.vllm"]
