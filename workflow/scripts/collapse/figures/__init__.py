"""Figures, from results tables only. One style, one way to write them, one module per kind of figure."""
