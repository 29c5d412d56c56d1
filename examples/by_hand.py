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

if len(sys.argv) != 4:
    example = "pointsman explain chat --inputs | python3 by_hand.py 0.95 90 16"
    sys.exit(f"usage: python3 by_hand.py ATTAINMENT START_SECONDS MOST_WORKERS, for example:\n  {example}")
late, most = max(0.001, 1 - float(sys.argv[1])), int(sys.argv[3])


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


text = sys.stdin.read()
if text.startswith("{"):
    plans = [(each["at_s"], each["inputs"]) for each in json.loads(text).get("decisions", ())]
else:
    number = r"(\w+)(?:(?:, |\s+)value: |  +)(-?\d[-+.\de]*)"
    plans = [(None, {name: float(value) for name, value in re.findall(number, text)})]
plans = [(at_s, plan) for at_s, plan in plans if "prefillMilliseconds" in plan]
if not plans:
    sys.exit("the input has no decision with numbers of prefill and decode workers")
for at_s, plan in plans:
    prefill_s, slack_s = plan["prefillMilliseconds"] / 1000, plan["slackMilliseconds"] / 1000
    prefill_per_s = 1 / max(prefill_s * plan["remoteShare"], 1e-9)  # of a worker
    rate, queue = plan["expectedRatePerSecond"], plan["backlog"]
    now = layout(plan["ratePerSecond"], queue, 30)
    served = min(plan["prefillWorkers"] * prefill_per_s, plan["decodeWorkers"] * plan["decodeDrainPerSecond"])
    queue += (rate - served) * (plan.get("startSeconds", float(sys.argv[2])) + 2.5)
    expected = layout(rate, queue, 120 if "queuedRequests" in plan else 30)
    if at_s is None:
        print(f"now {now}\nexpected {expected}")
    else:
        print(f"{at_s:g} s: now {now}, expected {expected}; planner: now {needed('Now')}, expected {needed('')}")
