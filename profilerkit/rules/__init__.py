"""Facts to findings: one rule per file."""
