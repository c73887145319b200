"""What an operator costs: arithmetic and memory traffic from the shapes of its inputs."""
