"""Any file into a trace, samples or dumps, and any path into the ranks of a job."""
