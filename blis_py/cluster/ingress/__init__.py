"""The stages before routing: sources, gateway, admission and flow control."""
