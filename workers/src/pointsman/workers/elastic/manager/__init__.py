"""The manager of an elastic group: it decides round by round what its instances compute, and answers requests.

``requests`` is the book that it keeps, ``rounds`` the loop, and ``links`` the connections to the instances.
``profiling`` measures how long prefills take, ``latency_store`` keeps that, and ``engine_core`` makes all of it the
engine core of vLLM's API server.
"""
