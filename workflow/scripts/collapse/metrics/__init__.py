"""The metric library: one module per metric, arrays in, plain dictionaries out, float64 inside.

A metric is one of two kinds (`collapse.registry` says which):

* over a **layer**: a function of the n x d matrix of one layer that returns a row, `{column: value}`;
* over a **trajectory**: a function of the sequence of those matrices, in order of depth, that yields one row each.

A row has a key `undefined`: None, or the reason why some of its values are None.
"""
