"""Findings to one verdict."""

from profilerkit.diagnosis.verdict import diagnose

__all__ = ["diagnose"]
