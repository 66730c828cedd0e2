"""Scripts that measure and compare; see README.md."""
