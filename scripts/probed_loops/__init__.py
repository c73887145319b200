"""Training loops with an injected bottleneck, its probe, and a fix that is really applied."""
