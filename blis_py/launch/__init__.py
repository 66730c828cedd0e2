"""Launch scripts, lines and manifests of real servers, read as the configuration of a run.

`reader.read_launch` is the entrance. Shell text becomes commands (`shell_lexer`, `shell_syntax`,
`shell_run`), commands and manifests become servers (`commands`, `manifests`), and the flags of a server
become settings by the table of its engine (`flag_table`, `profiles/launch`).
"""
