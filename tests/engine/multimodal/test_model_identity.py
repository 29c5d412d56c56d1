"""Which engines may use each other's embeddings: by vLLM's real configuration of a model."""

import json
import subprocess
from pathlib import Path

from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model

SCRIPT = Path(__file__).with_name("model_identities.py")
SAME = ("plain", "of an encode worker", "longer context")


def test_an_identity_changes_with_what_changes_embeddings_and_with_nothing_else() -> None:
    environment = ensure_engine_environment(images=True)
    model = ensure_model(environment, ModelSize.VISION)
    command = [str(environment.python), str(SCRIPT), str(model)]
    ran = subprocess.run(
        command, env=environment.variables(), check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    identities = json.loads(ran.stdout.splitlines()[-1])
    assert len({identities[name] for name in SAME}) == 1
    assert len(set(identities.values())) == len(identities) - len(SAME) + 1, identities
