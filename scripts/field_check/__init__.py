"""Recordings of GPUs from the field, each with a known truth, beside what profilerkit says of them."""
