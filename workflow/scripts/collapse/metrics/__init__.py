"""The metric library: one module per metric, arrays in, plain dictionaries out, float64 inside.

What a metric's function is called with stands under `metric` in its table (workflow/schemas/tables.yaml):

* `layer`: the n x d matrix of one layer; returns a row, `{column: value}`, or a list of rows;
* `trajectory`: the sequence of those matrices, in order of depth; yields one row each;
* `layer_labels`, `trajectory_labels`, `labels_per_token`: clusters, with or without the matrices they are of;
* `attention`: the heads x n x n attention of one block, and whether it is causal; returns a row per head or token.

A row has a key `undefined`: None, or the reason why some of its values are None.
"""
