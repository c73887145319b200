"""Collectives: which events they are, what they move, how ranks match, and who waits for whom."""
