"""What is left of a trace once it was read, in a small file: for runs of more ranks than fit into one analysis."""
