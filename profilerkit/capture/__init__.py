"""Inside the training process: recording without breaking or slowing the run."""

from profilerkit.capture.profiler import Profile, profile

__all__ = ["Profile", "profile"]
