"""Connect training frameworks and trackers; each module imports its framework only when it is used."""
