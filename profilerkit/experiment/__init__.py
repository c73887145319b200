"""Short runs of a user's own command with changes made at run time: what they save, and what they do to the numbers."""
