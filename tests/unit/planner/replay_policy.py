"""The policy of the tests of replays."""

POLICY = """
objectives: {ttftMs: 1500, tpotMs: 40}
budget: {maxGpus: 6}
actions: {scaleIn: {stabilizationSeconds: 60}}
metrics: {intervalSeconds: 5}
performance: {table: {model: meta-llama/Meta-Llama-3.1-8B, gpu: h100_sxm}}
"""
