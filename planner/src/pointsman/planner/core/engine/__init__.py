"""How long the engine takes: performance models, KV transfers, start-ups and role switches."""
