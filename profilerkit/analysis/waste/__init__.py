"""Where kernels take longer than their work asks for: alignment, grids, attention, optimizer, layout, searches."""
