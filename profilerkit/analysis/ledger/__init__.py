"""Where the wall clock of a whole run went, from its light-tier records."""
