"""Training loops on an asynchronous device, with the cause of their speed known: simulated, recorded, judged."""
