"""The pages of the gateway name every setting and every metric of the gateway, and its example file is one."""

import re
from pathlib import Path

from pointsman.api.protocol import headers
from pointsman.api.protocol import metrics as names
from pointsman.gateway import images
from pointsman.gateway.core.requests import MEDIA_OPTIONS, REFUSED
from pointsman.gateway.core.router import RouterName
from pointsman.gateway.discovery.static import read_file
from pointsman.gateway.metrics import IMAGE_REASONS, ImagePath
from pointsman.gateway.settings import Settings
from pointsman.serving.flow_control import LATE_DECODING_SHARE, LATE_PENDING_SHARE

REFERENCE = Path(__file__).parents[3] / "docs/reference"
PAGE = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("gateway*.md")))


def test_every_setting_router_and_refused_field_is_documented() -> None:
    for name in (*Settings.model_fields, *RouterName, *REFUSED, *MEDIA_OPTIONS):
        assert f"`{name}`" in PAGE, name


def test_every_metric_is_documented_with_its_labels() -> None:
    for metric in vars(names).values():
        if isinstance(metric, names.Metric) and metric.name.startswith("pointsman_gateway_"):
            row = next((line for line in PAGE.splitlines() if f"`{metric.name}`" in line), "")
            assert ", ".join(metric.labels) in row, metric.name


def test_every_reason_that_is_known_beforehand_counts_images_from_zero() -> None:
    sources = "".join(path.read_text() for path in Path(images.__path__[0]).glob("*.py"))
    reasons = {(ImagePath[path], reason) for path, reason in re.findall(r'Encoded\(ImagePath\.(\w+), "(.+?)"', sources)}
    assert reasons == set(IMAGE_REASONS)


def test_the_room_for_held_requests_is_the_rules() -> None:
    shares = (
        f"pending tokens below {LATE_PENDING_SHARE:.0%} and decoding requests below {LATE_DECODING_SHARE:.0%} of their"
    )
    assert shares.replace("%", " %") in " ".join(PAGE.split())


def test_the_headers_are_documented() -> None:
    for name in (
        headers.REQUEST_ID,
        headers.WORKER,
        headers.PREFILL,
        headers.HELD_MS,
        headers.MAX_LOCAL_PREFILL_TOKENS,
    ):
        assert f"`{name}`" in PAGE


def test_the_example_of_an_endpoints_file_can_be_read(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE, re.S)
    assert example is not None
    path = tmp_path / "endpoints.yaml"
    path.write_text(example[1])
    found = read_file(path)
    assert (len(found.workers), found.service_uid) == (1, "3f0e8a52")
    assert found.rule is not None
