"""The parts of the Kineto reader: text, events, repair, columns and metadata."""
