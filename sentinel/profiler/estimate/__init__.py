"""Estimates: the profile of a step that never ran, from shapes alone (torch's fake tensors)."""
