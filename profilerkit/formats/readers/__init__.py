"""One reader for each format; a module added here is found."""
