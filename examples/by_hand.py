"""Recomputes the needs of prefill and decode workers from the numbers of a decision: docs/planner/by-hand.md.

pointsman explain NAME --inputs | python3 by_hand.py ATTAINMENT START_SECONDS MOST_WORKERS
kubectl get pplan NAME -o yaml | python3 by_hand.py …
python3 by_hand.py … < FILE, from pointsman replay --json FILE
"""

import json
import math
import re
import sys
from statistics import NormalDist

try:
    attainment, start_s, most = (kind(given) for kind, given in zip((float, float, int), sys.argv[1:], strict=True))
    if not (0 < attainment < 1 and most >= 2):
        raise ValueError
except ValueError:
    example = "pointsman explain chat --inputs | python3 by_hand.py 0.95 90 16"
    sys.exit(f"usage: python3 by_hand.py ATTAINMENT START_SECONDS MOST_WORKERS, for example:\n  {example}")
late = max(0.001, 1 - attainment)
NEEDED = {
    "ratePerSecond", "expectedRatePerSecond", "backlog", "outputTokens", "remoteShare", "prefillMilliseconds",
    "prefillDispersion", "arrivalDispersion", "transferMilliseconds", "slackMilliseconds", "stepMilliseconds",
    "decodeBatch", "contextDispersion", "decodeDrainPerSecond", "prefillWorkers", "decodeWorkers",
}  # fmt: skip


def network(rate):
    return rate * plan["remoteShare"] * plan["transferMilliseconds"] / 1000 / 0.7


def prefill_workers(rate):
    work = rate * plan["remoteShare"] * prefill_s
    variation = (plan["arrivalDispersion"] + plan["prefillDispersion"]) / 2
    workers, blocked = 0, 1.0
    while work > 0:
        workers += 1
        blocked = work * blocked / (workers + work * blocked)  # Erlang B
        busy = work / workers
        if busy > 0.93 or workers < network(rate):
            continue
        waits = blocked / (1 - busy * (1 - blocked))  # Erlang C
        mean_wait_s = prefill_s * variation / (workers - work)
        if waits * math.exp(-slack_s / mean_wait_s) <= late:
            break
    return max(1, workers)


def decode_workers(rate):
    sequences = rate * plan["outputTokens"] * plan["stepMilliseconds"] / 1000
    z = NormalDist().inv_cdf(max(0.5, 1 - 2 * late))
    deviation = math.sqrt(sequences * (1 + plan["contextDispersion"]))
    return max((sequences + z * deviation) / plan["decodeBatch"], network(rate))


def layout(rate, queue, clear_s):
    prefill, decode = prefill_workers(rate), decode_workers(rate)
    if queue > max(5, 2 * rate):
        more = min(rate, queue / clear_s)
        prefill = max(prefill, math.ceil((rate + more) / prefill_per_s))
        decode = decode_workers(rate + min(more, plan["prefillWorkers"] * prefill_per_s))
    return f"{min(prefill, most)}P{min(max(1, math.ceil(decode - 0.02)), most)}D"


def needed(when):
    return f"{plan['prefillNeeded' + when]:.0f}P{plan['decodeNeeded' + when]:.0f}D"


text = sys.stdin.read().lstrip()
if text.startswith("{"):
    try:
        plans = [(each["at_s"], each["inputs"]) for each in json.loads(text).get("decisions", ())]
    except json.JSONDecodeError as error:
        sys.exit(f"the input is no JSON: {error}")
else:
    number = r"(\w+)(?:(?:, |\s+)value: |  +)(-?\d[-+.\de]*)"
    plans = [(None, {name: float(value) for name, value in re.findall(number, text)})]
plans = [(at_s, plan) for at_s, plan in plans if plan.keys() >= NEEDED]
if not plans:
    sys.exit("the input has no decision with numbers of prefill and decode workers")
for at_s, plan in plans:
    prefill_s, slack_s = plan["prefillMilliseconds"] / 1000, plan["slackMilliseconds"] / 1000
    prefill_per_s = 1 / max(prefill_s * plan["remoteShare"], 1e-9)  # of a worker
    rate, queue = plan["expectedRatePerSecond"], plan["backlog"]
    now = layout(plan["ratePerSecond"], queue, 30)
    served = min(plan["prefillWorkers"] * prefill_per_s, plan["decodeWorkers"] * plan["decodeDrainPerSecond"])
    queue += (rate - served) * (plan.get("startSeconds", start_s) + 2.5)
    expected = layout(rate, queue, 120 if "queuedRequests" in plan else 30)
    if at_s is None:
        print(f"now {now}\nexpected {expected}")
    else:
        print(f"{at_s:g} s: now {now}, expected {expected}; planner: now {needed('Now')}, expected {needed('')}")
