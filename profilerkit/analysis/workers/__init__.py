"""What a data loader's worker processes do."""
