"""The parts of the Kineto reader: records, cutting, repair, columns and metadata."""
