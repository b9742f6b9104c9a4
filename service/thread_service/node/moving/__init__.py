"""Moving a node's contents: written out as lines of JSON, read back, and taken over from a node of the original kind.

`records` is the vocabulary of all three, `exporting` makes records of a store, `importing` files them in one, and
`original` makes them of the property lists of the original.
"""
