"""From the gateway to an instance: signals, routers, scorers and dispatchers."""
