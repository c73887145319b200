"""How ``profilerkit run`` gets into the training process: by the environment, without touching the script."""
