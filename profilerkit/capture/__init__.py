"""Inside the training process: recording without breaking or slowing the run."""
