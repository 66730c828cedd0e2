"""An OpenAI-compatible server: one app in front of a real engine or a simulated fleet.

Start with `backend.py`, the protocol between the two, and `app.py`. Needs `pip install 'blis-py[serve]'`.
"""
