"""The run directory: what capture writes and analysis reads."""
