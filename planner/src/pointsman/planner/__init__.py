"""The planner: observe, decide, write Plans."""
