"""Token clustering over depth: weights, states, metrics, tables and figures of this workflow.

The metric library is `collapse.metrics`: arrays in, small tables out, float64 inside. It imports neither
Snakemake nor torch. Only `forward`, `checkpoint` and `weights` import torch, and only when they are used.
"""
