"""Parts of scripts/benchmark_scale."""
