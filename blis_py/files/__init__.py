"""Input files: every reader of this program goes through here.

`opening.py` opens text, plain or gzip, of bounded size; `yaml_files.py`, `json_files.py` and `csv_files.py`
parse it to plain data; `paths.py` checks paths; `cells.py` prevents spreadsheet formulas. For any content the
result is data or one `InputError`.
"""
