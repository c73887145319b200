"""Rules about allocator and capacity."""
