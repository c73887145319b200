"""Training frameworks: exact steps and named phases from their callbacks; each is imported only when it is used."""
