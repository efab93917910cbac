"""`sentinel prove`: what this host does with each example under each placement, predicted first, then executed.

The parent imports no torch: whatever trains, measures memory or watches runs in a process of its own.
"""
