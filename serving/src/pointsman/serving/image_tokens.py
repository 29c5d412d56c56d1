"""Tokens of an image in a prompt, as far as its size tells, and whether encoding it elsewhere is worth the way.

The gateway does not know a model's image processor. Qwen's vision models take a token for each 28 x 28 pixels; models
that scale every image to one size (LLaVA) take a fixed number of the same order for usual images.
"""

from typing import Final

PIXELS_PER_TOKEN_SIDE: Final = 28
MAX_IMAGE_TOKENS: Final = 16_384
"""Larger images are scaled down: Qwen2-VL's limit."""

EMBEDDING_BYTES_PER_TOKEN: Final = 8192
"""Of an embedding 4 096 wide in bfloat16."""


def estimated_image_tokens(width: int, height: int) -> int:
    """Tokens of an image of ``width`` x ``height`` pixels, at least 1."""
    columns, rows = -(-width // PIXELS_PER_TOKEN_SIDE), -(-height // PIXELS_PER_TOKEN_SIDE)
    return max(min(columns * rows, MAX_IMAGE_TOKENS), 1)


def encodes_remotely(image_tokens: int, bypass_below_tokens: int) -> bool:
    """Whether images of so many tokens in all go to encode workers: the local/remote rule of prompts, for images."""
    return image_tokens > bypass_below_tokens
