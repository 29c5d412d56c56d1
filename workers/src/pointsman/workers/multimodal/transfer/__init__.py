"""Embedding transfer: from an encode worker's buffer to the buffer of the worker that needs it for its prefill.

Pure: ``allocator``, ``buffers``, ``messages``, ``actions``, and the state machines ``sender`` and ``receiver``.
I/O: ``connection`` (authenticated frames), ``data_paths`` (TCP, shared memory), ``server`` and ``client``.
Design: docs/design/0005-embedding-transfer.md.
"""
