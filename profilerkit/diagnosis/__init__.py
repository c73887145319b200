"""Findings to one verdict."""
