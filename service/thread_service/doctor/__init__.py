"""`thread doctor`: whether this machine can run a node as it is configured, found out without starting one.

`checkup.run` asks every check; a module holds the checks of one subject, small functions from the settings to results.
They import what they look at themselves, and late: what is missing is a result, not a failure to start. Nothing is
changed, nothing is downloaded, nobody is called.
"""
