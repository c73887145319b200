"""What watching a training loop costs it: real steps, measured in pairs of blocks with and without each tool."""
