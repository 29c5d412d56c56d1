"""The elastic engine on a GPU: what it computes there, and how long it takes. See ``python -m bench.elastic.gpu``."""
