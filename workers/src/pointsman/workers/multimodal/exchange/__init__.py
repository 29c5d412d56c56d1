"""Embeddings from the engine of an encode worker to the one that prefills: vLLM's encoder cache over ``transfer``.

Pure: ``references`` (what a request carries), ``fetches`` (what is fetched for whom), ``publications`` (what can be
fetched here). I/O: ``background`` (an event loop beside the engine's thread), ``connector`` (what vLLM loads).
Design: docs/design/0006-encode-workers.md.
"""
