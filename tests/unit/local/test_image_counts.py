"""Where images were encoded, out of a gateway's metrics."""

from pointsman.local.multimodal_quickstart.image_counts import ImageCounts

PAGE = """\
# TYPE pointsman_gateway_images_total counter
pointsman_gateway_images_total{path="encode",reason="encoded",service="vision"} 3.0
pointsman_gateway_images_total{path="bypass",reason="small",service="vision"} 1.0
pointsman_gateway_images_total{path="local",reason="unreachable",service="vision"} 2.0
pointsman_gateway_images_total{path="local",reason="timed-out",service="vision"} 0.0
pointsman_gateway_images_refused_total{reason="domain",service="vision"} 7.0
"""


def test_images_are_counted_by_path_and_reason() -> None:
    counts = ImageCounts.read(PAGE)
    assert (counts.of("encode"), counts.of("cache"), counts.of("local")) == (3, 0, 2)
    assert counts.in_words == (
        "3 encoded by the encode worker, 1 bypassed it (small), 2 encoded where the prompt was prefilled (unreachable)"
    )
    assert ImageCounts().in_words == "no image"


def test_what_came_after_is_the_difference() -> None:
    before = ImageCounts.read(PAGE.replace("} 3.0", "} 1.0"))
    assert ImageCounts.read(PAGE).since(before).in_words == "2 encoded by the encode worker"
