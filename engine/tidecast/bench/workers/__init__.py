"""Workers of the benches: each role is a function that a process of its own runs.

`process` is that process, and `registry` names the roles. Roles of one bench stand in its file.
"""
