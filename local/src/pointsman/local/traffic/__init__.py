"""Bounded, seeded load on an OpenAI endpoint, with a record of every request.

``prompts``     what is asked (seeded)      ``client``   one request, timed      ``load``   closed and open loops
``statistics``  pure figures from records   ``types``    Prompt and Record
``exactness``   same tokens from two sides  ``interference``  streams that run while long prompts arrive
``images``      pictures for chats
"""

from pointsman.local.traffic.client import Endpoint
from pointsman.local.traffic.exactness import Comparison, Difference, compare
from pointsman.local.traffic.images import png_url, with_images
from pointsman.local.traffic.interference import Interference, Scenario, StreamsEnded, interfere
from pointsman.local.traffic.load import Traffic, closed_loop, open_loop, running_load
from pointsman.local.traffic.prompts import Mix, prompts
from pointsman.local.traffic.statistics import Latency, Summary, percentile, recent, summarise
from pointsman.local.traffic.types import Api, PrefillPath, Prompt, Record

__all__ = [
    "Api",
    "Comparison",
    "Difference",
    "Endpoint",
    "Interference",
    "Latency",
    "Mix",
    "PrefillPath",
    "Prompt",
    "Record",
    "Scenario",
    "StreamsEnded",
    "Summary",
    "Traffic",
    "closed_loop",
    "compare",
    "interfere",
    "open_loop",
    "percentile",
    "png_url",
    "prompts",
    "recent",
    "running_load",
    "summarise",
    "with_images",
]
