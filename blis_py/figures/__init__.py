"""Pictures in the house style."""
