"""What browser tests share: one headless Chromium, and reports that ``pointsman replay`` wrote for this run."""

import json
import os
import shutil
import subprocess
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from browser.looking import Opener
from pointsman.local.binaries import CHROMIUM, ensure
from pointsman.planner.replay import command
from pointsman.planner.replay.page import page

POLICY: Final = """
objectives: {ttftMs: 1500, tpotMs: 40}
budget: {maxGpus: %d}
actions: {scaleIn: {stabilizationSeconds: 60}}
performance: {table: {model: meta-llama/Meta-Llama-3.1-8B, gpu: h100_sxm}}
"""
STEP: Final = "step:low=2,high=10,up_s=60,down_s=150,duration_s=200"
IMAGES: Final = "mixshift:images=3,image_share=0.2,later_image_share=1,at_s=60,duration_s=120,rate=4,later_rate=4"
# Chromium's sandbox is made of these; the inner ones are asked for as an ordinary user.
_NAMESPACES: Final = ("unshare", "--user", "--map-root-user", "--pid", "--net", "--fork", "true")
_ORDINARY: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@dataclass(frozen=True)
class Report:
    """A page and what was written with it. ``before``: the document that it was compared with."""

    page: Path
    document: dict[str, Any]
    before: dict[str, Any] | None = None


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Reports of all kinds, by name."""
    folder = tmp_path_factory.mktemp("reports")
    for name, gpus in (("enough", 6), ("few", 2), ("many", 10)):
        (folder / f"{name}.yaml").write_text(POLICY % gpus)

    def made(name: str, trace: str, policy: str, *arguments: str, before: str | None = None) -> Report:
        html, document = folder / f"{name}.html", folder / f"{name}.json"
        compared = ("--compare", str(folder / f"{before}.json")) if before else ()
        assert command.main([
            "--trace", trace, "--policy", str(folder / f"{policy}.yaml"), "--startup-seconds", "30", *arguments,
            *compared, "--html", str(html), "--json", str(document),
        ]) == 0  # fmt: skip
        kept = json.loads((folder / f"{before}.json").read_text()) if before else None
        return Report(html, json.loads(document.read_text()), kept)

    found = {
        "step": made("step", STEP, "enough"),
        "not-worse": made("not-worse", STEP, "enough", before="step"),
        "worse": made("worse", STEP, "few", before="step"),
        "images": made("images", IMAGES, "many", "--encode-milliseconds", "80"),
        "calm": made("calm", "steady:duration_s=60,rate=1", "enough"),
    }
    long = _longer(found["step"].document)
    (folder / "long.html").write_text(page(long))
    return found | {"long": Report(folder / "long.html", long)}


def _longer(document: dict[str, Any]) -> dict[str, Any]:
    """The same in 25 times the time: hours on the axis; of each decision three, so close that they share a label."""

    def later(entry: dict[str, Any], s: float = 0.0) -> dict[str, Any]:
        width = {"width_s": 25 * entry["width_s"]} if "width_s" in entry else {}
        return entry | width | {"at_s": 25 * entry["at_s"] + s}

    return document | {
        "timeline": [later(point) for point in document["timeline"]],
        "windows": [later(window) for window in document["windows"]],
        "decisions": [later(each, s) for each in document["decisions"] for s in (0.0, 15.0, 30.0)],
    }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """The pinned Chromium, fetched now if this computer has none.

    It keeps its sandbox wherever the kernel allows user namespaces. As root, for whom it refuses one, it is started as
    another user of a namespace. Where namespaces are forbidden it has none: it opens pages of this project only, which
    load nothing and have no script.
    """
    program = ensure(CHROMIUM)
    outside = _ORDINARY if os.geteuid() == 0 else ()
    sandbox = _works(*outside, *_NAMESPACES)
    if not sandbox:
        warnings.warn("Chromium runs without its sandbox: user namespaces are not allowed here", stacklevel=1)
    elif outside:
        start = tmp_path_factory.mktemp("chromium") / "start"
        start.write_text(f'#!/bin/sh\nexec {" ".join(outside)} "{program}" "$@"\n')
        start.chmod(0o755)
        program = start
    async with async_playwright() as playwright:
        # Without a GPU the pictures are drawn in software at once; with one it would be looked for first.
        browser = await playwright.chromium.launch(
            executable_path=program, chromium_sandbox=sandbox, args=["--disable-gpu"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture(scope="session")
def opener(chromium: Browser) -> Opener:
    """Opens files in that browser."""
    return Opener(chromium)


def _works(*argv: str) -> bool:
    return shutil.which(argv[0]) is not None and not subprocess.run(argv, capture_output=True, check=False).returncode
