"""Logs beside traces, or instead of them: what samplers and the allocator wrote."""
