"""The checks of a report's page in a real browser: who drives it, what is measured, what must hold."""
