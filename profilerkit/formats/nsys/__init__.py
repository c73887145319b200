"""The parts of the reader of Nsight Systems exports."""
