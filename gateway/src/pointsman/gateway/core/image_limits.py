"""Limits of the images in requests, and what a refused image is answered with.

Every message names the image's field and, where a limit of the service refused it, the field that moves the limit.
"""

from dataclasses import dataclass
from enum import StrEnum

from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.api.v1alpha1.multimodal import multimodal_limit
from pointsman.gateway.errors import RequestInvalid


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """See Settings. Bytes as fetched or sent; ``domains`` empty: any public host.

    ``max_body_bytes``: of a request with its images in it.
    """

    max_images: int
    max_bytes: int
    max_pixels: int
    domains: tuple[str, ...]
    fetch_timeout_seconds: float
    max_redirects: int
    max_body_bytes: int


class ImageRefusal(StrEnum):
    """Why an image was refused; the value is a metric label."""

    TOO_MANY = "too-many"
    TOO_LARGE = "too-large"  # bytes
    TOO_MANY_PIXELS = "too-many-pixels"
    NOT_AN_IMAGE = "not-an-image"
    BAD_URL = "bad-url"
    DOMAIN = "domain"
    ADDRESS = "address"  # not public
    REDIRECTS = "redirects"
    TIMED_OUT = "timed-out"
    FETCH_FAILED = "fetch-failed"


class ImageInvalid(RequestInvalid):
    """An image of the request cannot be used; ``refusal`` says why."""

    code = "invalid_image"

    def __init__(self, refusal: ImageRefusal, message: str, *, param: str) -> None:
        super().__init__(message, param=param)
        self.refusal = refusal


def too_many(count: int, limits: ImageLimits) -> ImageInvalid:
    """More images than a request may have."""
    return ImageInvalid(
        ImageRefusal.TOO_MANY,
        f"The request has {count} images; at most {limits.max_images} are accepted. "
        f"The limit is {multimodal_limit('max_images')} of the service.",
        param="messages",
    )


def too_large(param: str, limits: ImageLimits) -> ImageInvalid:
    """More bytes than an image may have."""
    return ImageInvalid(
        ImageRefusal.TOO_LARGE,
        f"The image in '{param}' is larger than {limits.max_bytes / 2**20:g} MiB; "
        f"the limit is {multimodal_limit('max_image_mib')} of the service.",
        param=param,
    )


def too_large_together(limits: ImageLimits) -> ImageInvalid:
    """More bytes than a request may have, once its images are in it."""
    return ImageInvalid(
        ImageRefusal.TOO_LARGE,
        f"The request is larger than {limits.max_body_bytes / 2**20:g} MiB with all its images as data URLs, each as "
        f"often as it occurs; the limit is {gateway_limit('max_body_mib')} of the service.",
        param="messages",
    )


def too_many_pixels(param: str, width: int, height: int, limits: ImageLimits) -> ImageInvalid:
    """More pixels than an image may have."""
    return ImageInvalid(
        ImageRefusal.TOO_MANY_PIXELS,
        f"The image in '{param}' has {width} x {height} pixels; at most {limits.max_pixels / 1e6:g} million are "
        f"accepted. The limit is {multimodal_limit('max_image_megapixels')} of the service.",
        param=param,
    )


def not_an_image(param: str, why: str) -> ImageInvalid:
    """The content is something else."""
    return ImageInvalid(ImageRefusal.NOT_AN_IMAGE, f"The image in '{param}' cannot be read: {why}.", param=param)


def bad_url(param: str, why: str) -> ImageInvalid:
    """The address is not one of an image."""
    return ImageInvalid(
        ImageRefusal.BAD_URL, f"The URL in '{param}' {why}; give an https, http or base64 data URL.", param=param
    )


def domain_not_allowed(param: str) -> ImageInvalid:
    """The host, or that of a redirect, is not in the list."""
    return ImageInvalid(
        ImageRefusal.DOMAIN,
        f"The image in '{param}' is on a host from which this service fetches no images; "
        f"allowed hosts are listed in {multimodal_limit('image_allowed_domains')} of the service.",
        param=param,
    )


def address_not_public(param: str) -> ImageInvalid:
    """The host has no address to which the gateway connects. Unknown hosts read the same, so nothing can be probed."""
    return ImageInvalid(
        ImageRefusal.ADDRESS,
        f"The host of the image in '{param}' does not exist or has no public address. Send the image as a data URL.",
        param=param,
    )


def too_many_redirects(param: str, limits: ImageLimits) -> ImageInvalid:
    """More redirects than a fetch follows."""
    return ImageInvalid(
        ImageRefusal.REDIRECTS,
        f"The image in '{param}' was redirected more than {limits.max_redirects} times; "
        f"the limit is {multimodal_limit('image_max_redirects')} of the service.",
        param=param,
    )


def timed_out(param: str, limits: ImageLimits) -> ImageInvalid:
    """The image did not come in time."""
    return ImageInvalid(
        ImageRefusal.TIMED_OUT,
        f"The image in '{param}' did not arrive within {limits.fetch_timeout_seconds:g} s; "
        f"the limit is {multimodal_limit('image_fetch_timeout_seconds')} of the service.",
        param=param,
    )


def fetch_failed(param: str, why: str) -> ImageInvalid:
    """Its server did not send it."""
    return ImageInvalid(ImageRefusal.FETCH_FAILED, f"The image in '{param}' could not be fetched: {why}.", param=param)
