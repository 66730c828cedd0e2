"""Files as users give them: every reader of this program goes through here.

`opening.py` opens text, plain or gzip, of bounded size; `yaml_files.py`, `json_files.py` and `csv_files.py`
turn it into plain data; `paths.py` asks what is there; `cells.py` keeps spreadsheets from running a table.
Whatever is in a file, the answer is data or one `InputError`.
"""
