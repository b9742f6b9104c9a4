"""The node as a member of a fleet: it dials a mothership, registers, and answers requests over one stream.

`client` is the loop, `session` one stream, `peer` what is dialled and how, `availability` what is said about storage.
"""
