"""Parts of ``scripts/benchmark_speed``: the base trace, its growth, the tools, the measurement, the page."""
