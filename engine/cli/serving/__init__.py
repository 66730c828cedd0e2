"""The engine behind the app of `blis_py.serve`: its loop in a thread of its own."""
