"""What the kernels of the steady window waste: the records that rules read. Shares are of the steady time."""
