"""Any trace file into TraceColumns."""
