"""Device peaks with their sources, looked up by name."""
