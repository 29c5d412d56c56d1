"""``make crds``: write the CRDs, the chart's copy and the API reference; ``--check`` only says what differs."""

import argparse
import sys
from pathlib import Path

from pointsman.api.schema.manifest import crd_yaml
from pointsman.api.schema.reference import reference
from pointsman.api.v1alpha1 import INSTALLED


def generated(root: Path) -> dict[Path, str]:
    """Every generated file of the repository at ``root``, with its text."""
    files: dict[Path, str] = {root / "docs" / "reference" / "api.md": reference(INSTALLED)}
    for kind in INSTALLED:
        for folder in (root / "crds", root / "charts" / "pointsman" / "files" / "crds"):
            files[folder / f"{kind.resource.plural}.yaml"] = crd_yaml(kind)
    return files


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if ``--check`` found a file that differs."""
    parser = argparse.ArgumentParser(prog="python -m pointsman.api.schema", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    parser.add_argument("--check", action="store_true", help="write nothing; print the differences")
    arguments = parser.parse_args(argv)
    files = generated(arguments.root)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if arguments.check:
        for path in stale:
            print(f"{path.relative_to(arguments.root)} differs from the models: run 'make crds'", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
        print(f"wrote {path.relative_to(arguments.root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
