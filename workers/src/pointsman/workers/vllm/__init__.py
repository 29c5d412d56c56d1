"""vLLM as the engine of a worker: its command line, its environment, and what it needs mended on CPU."""
