"""What scripts/new_rule writes."""
