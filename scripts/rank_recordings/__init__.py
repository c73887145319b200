"""Real runs of two ranks over gloo with a known cause of waiting, and the comparison of a report with it."""
