"""A queue simulated arrival by arrival."""

import heapq
import random


def simulated_waits(servers: int, rate: float, services: list[float], arrivals: int, seed: int) -> list[float]:
    """Waiting times of M/G/c, by events."""
    rng, free, now, waits = random.Random(seed), [0.0] * servers, 0.0, []
    for _ in range(arrivals):
        now += rng.expovariate(rate)
        start = max(now, heapq.heappop(free))
        waits.append(start - now)
        heapq.heappush(free, start + rng.choice(services))
    return waits[arrivals // 10 :]
