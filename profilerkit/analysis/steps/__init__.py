"""The steps of a run: which there are, which are steady, slow or stalled."""
