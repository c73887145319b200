"""What-if replay: the steps as a graph of host time and device work, run again with a cause removed."""
