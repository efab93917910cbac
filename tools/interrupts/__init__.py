"""Interrupts a session at every line of ours that its life runs, one process a line, and looks at what is left."""
