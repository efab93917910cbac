"""Policies of other systems, to compare with. `sentinel.planner.load_policy` imports them by name."""
