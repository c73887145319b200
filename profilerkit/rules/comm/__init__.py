"""Rules about collectives."""
