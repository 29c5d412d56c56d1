"""Queues of several servers: who waits, for how long, and who is lost where nobody waits too long.

Prefill is such a queue (G/G/c): Erlang-C's probability to wait, and for those that wait an exponential with the mean of
Allen and Cunneen. (Sakasegawa's mean with Erlang-C is not monotone in the load: the two do not fit each other.)
"""

import math


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits, for ``offered`` = rate × service time < ``servers``; 1 when overloaded."""
    if offered <= 0:
        return 0.0
    if offered >= servers:
        return 1.0
    blocking = 1.0  # Erlang-B by its recursion, which does not overflow
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return servers * blocking / (servers - offered * (1 - blocking))


def delayed_wait_s(
    servers: int, rate_per_s: float, mean_service_s: float, arrival_scv: float, service_scv: float
) -> float:
    """Mean wait of those that wait at all, in G/G/c (Allen and Cunneen; exact for M/M/c); infinite when overloaded."""
    utilisation = rate_per_s * mean_service_s / servers
    if utilisation >= 1:
        return math.inf
    return mean_service_s * (arrival_scv + service_scv) / 2 / (servers * (1 - utilisation))


def lost_share(
    servers: int, rate_per_s: float, mean_service_s: float, arrival_scv: float, service_scv: float, patience_s: float
) -> float:
    """Share of arrivals that find a wait above ``patience_s`` and go, so that they keep nobody else.

    M/M/c with deterministic patience (Gnedenko and Kovalenko, *Introduction to Queueing Theory*, §1.5), also under
    overload; patience is scaled for other arrivals and service times as the mean wait of Allen and Cunneen is.
    """
    offered = rate_per_s * mean_service_s
    if offered <= 0:
        return 0.0
    blocking = 1.0  # Erlang-B of one server less
    for k in range(1, servers):
        blocking = offered * blocking / (k + offered * blocking)
    patience_s *= 2 / max(arrival_scv + service_scv, 1e-9)
    drift = rate_per_s - servers / mean_service_s
    grown = drift * patience_s
    if grown > 500:  # what is lost there, to the last digit; and nothing overflows
        return offered / servers / (rate_per_s / drift + offered / servers)
    waiting = patience_s if abs(grown) < 1e-9 else math.expm1(grown) / drift
    beyond = offered / servers * math.exp(grown)
    return blocking * beyond / (1 + blocking * (rate_per_s * waiting + beyond))
