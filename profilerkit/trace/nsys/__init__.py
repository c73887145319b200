"""Exports of Nsight Systems: what stands in their tables, and what it is in the columns of a trace."""
