"""What profilerkit says on a GPU beside what is true there, one module per part."""
