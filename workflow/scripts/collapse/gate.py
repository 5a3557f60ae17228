"""The gate of degenerate layers, for the metrics that stop there and the figures that show it."""

# Effective rank of the directions below which two tokens differ by little but rounding.
DEGENERATE_RANK = 3.0
