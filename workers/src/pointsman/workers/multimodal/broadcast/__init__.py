"""Input broadcast: the multimodal inputs of a request, from the entry rank to all ranks of a tensor-parallel group.

Pure: ``modes``, ``messages``, and the state machines ``entry`` and ``receiving``.
I/O: ``links`` (Unix sockets), ``segments`` (shared memory), ``parcels`` (objects to bytes), ``entry_rank`` and
``other_rank`` (the shells), ``vllm_executor`` (vLLM's ranks).
Design: docs/design/0007-input-broadcast.md.
"""
