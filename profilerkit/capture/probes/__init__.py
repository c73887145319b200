"""Probes: some steps of the user's own loop with one thing changed, and everything put back afterwards."""
