"""The typed records that travel from analysis to report, and nothing that does work."""
