"""Whether the diagnosis is right: real training runs with a known fault, and the same runs with the fault removed."""
