"""The OpenAI gateway with a router that knows the workers' KV caches."""
