"""Drive a server with a workload and measure every request: a client of the OpenAI API.

Start with `driver.py`, which sends requests at their times, and `http.py`, the client beneath it.
"""
