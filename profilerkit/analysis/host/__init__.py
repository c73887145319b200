"""What the host threads did, and why the device waited for them."""
