"""The stages of the quick start in the order in which a person sees them: key and title."""

from typing import Final

from pointsman.local.traffic import Mix

# Some prompts below, some above what a decode worker computes itself by default (512 tokens).
SHORT, LONG = range(8, 200), range(700, 2_600)
MIX: Final = Mix(lengths=(SHORT, LONG), max_tokens=range(16, 49), token_ids_share=0.3)
SHOWN_REQUESTS: Final = 48
STALL_STREAMS: Final = 3

TITLES: Final = {
    "prepare": "Preparing this computer: programs, vLLM, two small test models",
    "cluster": "Starting Kubernetes on this computer",
    "install": "Installing Pointsman with helm",
    "service": "Starting a language model: 1 worker for prompts (prefill), 2 for answers (decode)",
    "traffic": f"Sending {SHOWN_REQUESTS} requests with prompts of {SHORT.start} to {LONG.stop} tokens",
    "exactness": "Sending the same prompts to one plain vLLM server and comparing the answers",
    "scaling": "Scaling the decode workers up and down while requests run",
    "stall": f"Measuring pauses: 2000-token prompts arrive while {STALL_STREAMS} answers are being streamed",
    "shift": "Shifting the load to long prompts and back: the planner switches roles of workers",
}
QUICK: Final = 6
"""So many of them are in the quick form."""
