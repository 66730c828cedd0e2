"""HTML from results: reports in one file, and the parts that the interactive page shares with them."""
