"""The planner's decision, pure: ``decide(state, observation, policy, now_s) -> (State, Decision)``.

No I/O, no asyncio, no clock: the same code runs live, in shadow and in replay.
"""
