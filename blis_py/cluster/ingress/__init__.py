"""What requests pass before routing: sources, gateway, admission and flow control."""
