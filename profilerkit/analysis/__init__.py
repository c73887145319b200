"""Columns and logs to facts: pure functions of what was recorded."""
