"""A discrete-event simulator of a training step that writes Kineto-shaped traces and knows the truth about them."""
