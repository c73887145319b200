"""What ran on the device: kernels and copies, their costs and how near they are to the roofs."""
