"""The sample reports in reports/: one for each verdict, recorded by our own programs and rendered from their JSON."""
