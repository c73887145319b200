"""Memory: what was allocated, by whom, and whether it grows."""
