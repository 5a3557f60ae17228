from runs import changed, finished, shared, small, tiny_gpt2  # noqa: F401
