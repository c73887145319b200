"""The static figures: one module each, from the report to a ``Chart``."""
