"""Training programs with one fault each. A module has ``FAULT``, ``prepare``, ``train``, ``SLOW`` and ``propose``."""
