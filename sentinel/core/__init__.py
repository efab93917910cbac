"""The nouns of Sentinel and the pure functions on them. Needs numpy only; does no I/O."""
