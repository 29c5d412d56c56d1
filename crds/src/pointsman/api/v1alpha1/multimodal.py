"""``spec.multimodal``: limits of the images in requests, and when an image goes to an encode worker.

A field that is not written has the default shown here. The gateway takes its own defaults from this model.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from pointsman.api.schema.rules import Rule, cel_string, extra
from pointsman.api.v1alpha1.resource import ApiModel

DOMAIN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class MultimodalSpec(ApiModel):
    """Images in requests: limits of each gateway pod, and when an image goes to an encode worker."""

    max_images: int = Field(
        default=16, ge=1, le=1024, description="Most images in one request. Requests with more are rejected with 400."
    )
    max_image_mib: int = Field(
        default=20,
        alias="maxImageMiB",
        ge=1,
        le=1024,
        description="Largest image, in MiB as fetched or sent. Requests with a larger one are rejected with 400.",
    )
    max_image_megapixels: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Most pixels of an image, in millions. Requests with a larger one are rejected with 400.",
    )
    allowed_domains: tuple[
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                json_schema_extra=extra(
                    Rule(
                        f"self.matches({cel_string(DOMAIN_PATTERN)})",
                        "'{self}' is not a valid domain; write a host name in lower case without scheme and port, "
                        "e.g. images.example.com",
                    )
                ),
            ),
        ],
        ...,
    ] = Field(
        default=(),
        max_length=64,
        description="Hosts from which images are fetched, subdomains included. Empty: any host with a public address.",
    )
    fetch_timeout_seconds: int = Field(
        default=5,
        ge=1,
        le=300,
        description="Longest time to fetch an image. A request whose image takes longer is rejected with 400.",
    )
    max_redirects: int = Field(
        default=3,
        ge=0,
        le=20,
        description="Most redirects that a fetch follows. Requests that need more are rejected with 400.",
    )
    cache_mib: int = Field(
        default=512,
        alias="cacheMiB",
        ge=1,
        le=65_536,
        description="Memory of one encode worker for the embeddings that it used last, in MiB.",
    )
    bypass_below_tokens: int = Field(
        default=256,
        ge=0,
        le=1_000_000,
        description="If the images of a request have at most this many tokens together, the worker that prefills "
        "encodes them. 0: every image goes to an encode worker.",
    )


MULTIMODAL_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_images": "max_images",
        "max_image_mib": "max_image_mib",
        "max_image_megapixels": "max_image_megapixels",
        "allowed_domains": "image_allowed_domains",
        "fetch_timeout_seconds": "image_fetch_timeout_seconds",
        "max_redirects": "image_max_redirects",
        "cache_mib": "encode_cache_mib",
        "bypass_below_tokens": "encode_bypass_below_tokens",
    }
)
"""Field of ``MultimodalSpec`` -> setting of the gateway process (environment ``POINTSMAN_<SETTING>``)."""


def multimodal_environment(spec: MultimodalSpec | None) -> dict[str, str]:
    """The gateway's environment of ``spec.multimodal``; empty where it is absent. A list is JSON."""
    if spec is None:
        return {}
    written = {setting: getattr(spec, field) for field, setting in MULTIMODAL_SETTINGS.items()}
    return {
        f"POINTSMAN_{setting.upper()}": json.dumps(value) if isinstance(value, tuple) else str(value)
        for setting, value in written.items()
    }


def multimodal_limit(setting: str) -> str:
    """Where a user moves a limit of images, e.g. ``spec.multimodal.maxImageMiB`` for ``max_image_mib``.

    Every error that states such a limit names it. Raises KeyError.
    """
    field = next((field for field, name in MULTIMODAL_SETTINGS.items() if name == setting), None)
    if field is None:
        raise KeyError(f"{setting} is no limit of images")
    return f"spec.multimodal.{MultimodalSpec.model_fields[field].alias}"
