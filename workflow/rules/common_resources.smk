# What a job asks of a machine or a cluster. A profile's `retries` submits a job that was killed for memory or time again,
# and then it asks for more of both.


def grows(amount):
    """A resource whose first attempt asks for `amount`, the second for twice that, and so on."""
    return lambda wildcards, attempt: attempt * amount


def token_bound(wildcards):
    """The most tokens that a run's prompt can have before any tokenizer saw it: no token is less than a byte."""
    with_ends = os.path.getsize(GRID.prompts[wildcards.prompt]) + 2
    return min(config["max_tokens"], with_ends)


def model_memory(wildcards, input, attempt):
    """Megabytes for a job that holds a model, from the size of its files and the tokens of its prompt, if it has one."""
    # Four bits in a GGUF file are float32 in memory.
    files = sum(path.stat().st_size * (8 if path.suffix == ".gguf" else 1) for path in Path(input[0]).iterdir())
    # Attention is n x n: three copies of it for 25 heads.
    attention = 300 * token_bound(wildcards) ** 2 if "prompt" in wildcards.keys() else 0
    return int(attempt * (1500 + (1.5 * files + attention) / 1e6))


def attention_minutes(wildcards, attempt):
    """Minutes for the attention of one run: eigenvalues of each of a thousand heads, which are n x n."""
    return int(attempt * 30 * max(1, (token_bound(wildcards) / 512) ** 3))


def metric_memory(wildcards, attempt):
    """Megabytes for a metric of one run: a few n x n matrices in float64, one layer at a time."""
    return int(attempt * (1000 + 80 * token_bound(wildcards) ** 2 / 1e6))


def metric_minutes(wildcards, attempt):
    """Minutes for a metric of one run: seconds up to 512 tokens; what it decomposes is n x n."""
    return int(attempt * 5 * max(1, (token_bound(wildcards) / 512) ** 2))
