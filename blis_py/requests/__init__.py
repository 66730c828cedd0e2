"""The request table, filled by request sources and served by clusters."""
