# What a job asks of a machine or a cluster. A profile's `retries` submits a job that was killed for memory or time again,
# and then it asks for more of both.


def grows(amount):
    """A resource whose first attempt asks for `amount`, the second for twice that, and so on."""
    return lambda wildcards, attempt: attempt * amount


def token_bound(wildcards):
    """The most tokens that a run's prompt can have before any tokenizer saw it: no token is less than a byte."""
    with_ends = os.path.getsize(GRID.prompts[wildcards.prompt]) + 2
    return min(config["max_tokens"], with_ends)


def is_stored_in_float32(model):
    """Whether a model's files are as large as its weights in memory: known once its trained weights were looked at."""
    record = Path(WEIGHTS_RECORD.format(model=model, weights=TRAINED.slug))
    return record.is_file() and json.loads(record.read_text(encoding="utf-8"))["checkpoint_dtypes"] == ["float32"]


def model_megabytes(wildcards, folder):
    """Megabytes of a model in float32, with half as much to spare, and of what a process needs besides."""
    # Sixteen bits are 32 in memory, and so are four in a GGUF file.
    growth = {".gguf": 8, ".safetensors": 1 if is_stored_in_float32(wildcards.model) else 2}
    files = sum(path.stat().st_size * growth.get(path.suffix, 1) for path in Path(folder).iterdir())
    return 1500 + 1.5 * files / 1e6


def model_memory(wildcards, input, attempt):
    """Megabytes for a job that holds a model, from the size of its files and the tokens of its prompt, if it has one."""
    # Attention is n x n: three copies of it for 25 heads.
    attention = 300 * token_bound(wildcards) ** 2 if "prompt" in wildcards.keys() else 0
    return int(attempt * (model_megabytes(wildcards, input[0]) + attention / 1e6))


def attention_memory(wildcards, input, attempt):
    """Megabytes for a job that holds a model and measures its attention, which is then there in float64 too."""
    return int(attempt * (model_megabytes(wildcards, input[0]) + 800 * token_bound(wildcards) ** 2 / 1e6))


def table_memory(wildcards, input, attempt):
    """Megabytes for a table, which stands in memory while it is gathered from its files."""
    # A file with a row for each of a thousand tokens at each of 36 layers takes that; others a tenth of a megabyte.
    per_file = 8 if "position" in table_columns(wildcards.table) else 1
    return attempt * max(1000, 500 + per_file * len(input))


def attention_minutes(wildcards, attempt):
    """Minutes for the attention of one run: eigenvalues of each of a thousand heads, which are n x n."""
    return int(attempt * 30 * max(1, (token_bound(wildcards) / 512) ** 3))


def metric_memory(wildcards, attempt):
    """Megabytes for a metric of one run: a few n x n matrices in float64, one layer at a time."""
    return int(attempt * (1000 + 80 * token_bound(wildcards) ** 2 / 1e6))


def metric_minutes(wildcards, attempt):
    """Minutes for a metric of one run: seconds up to 512 tokens; what it decomposes is n x n."""
    return int(attempt * 5 * max(1, (token_bound(wildcards) / 512) ** 2))
