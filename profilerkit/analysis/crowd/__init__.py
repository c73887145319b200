"""Thousands of ranks at once: who keeps the others waiting, and which of them are worth a closer look."""
