"""``pointsman explain``: the planner's last decision, as a colleague would tell it."""
