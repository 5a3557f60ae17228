"""What a scheme of random weights is named, and which parameters it redraws."""

# Component -> the roles, in the table of architectures, of the parameters that belong to it.
COMPONENTS = {"embeddings": ("embeddings",), "qk": ("q", "k"), "ov": ("v", "o"), "mlp": ("mlp",)}
ALL = "all"


def scheme_name(definition):
    """Return a scheme's name in tables and paths, without its seed: all that differs from the default is in it.

    >>> scheme_name({"scheme": "norm-matched", "components": ["qk"], "norms": "keep", "biases": "zero"})
    'norm-matched-qk-zero-bias'
    """
    parts = [definition["scheme"], *(c for c in definition["components"] if c != ALL)]
    parts += ["reset"] * (definition.get("norms") == "reset") + ["zero-bias"] * (definition.get("biases") == "zero")
    return "-".join(parts)


def belongs(role, definition):
    """Tell whether parameters of a role (None: of none) are redrawn under a scheme's definition."""
    chosen = definition["components"]
    return ALL in chosen or any(role in COMPONENTS[component] for component in chosen)
