"""Every sentence of the planner: functions from typed facts to text, by what they are about.

``decisions`` that change nothing, ``layouts`` (what is done and why), ``rejections`` of other layouts, ``guards`` of
switches, ``encoders``, ``groups`` (elastic groups), ``objectives`` that are out of reach, ``health`` (the condition
PlannerHealthy), ``routing``, and ``explanations`` (what ``pointsman explain`` prints). ``docs/reference/style.md`` has
the rules; ``make messages`` renders all of them with example facts.
"""
