"""Measure how time and memory grow with tokens, layers, heads and prompts, and write it to benchmarks/GROWTH.md.

An exponent is the slope of a straight line through the logarithms of size and cost, by least squares over the sizes of
its row; that between the last two sizes stands beside it, since there constants weigh least.
"""

import argparse
import os
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import passes
from jobs import STATE_METRICS, Runs

REPORT = Path(__file__).with_name("GROWTH.md")
WIDTH, TOKENS = 768, 256
MEASURED = ("clusters", *STATE_METRICS, "projections pca", "identity_attention")
FULL = {
    "tokens": (128, 256, 512, 1024, 2048),
    "layers": (3, 6, 12, 24, 48),
    "heads": (4, 8, 16, 32),
    "prompts": (1, 2, 4, 8),
}
TINY = {
    axis: sizes[:2]
    for axis, sizes in (("tokens", (16, 32)), ("layers", (2, 4)), ("heads", (2, 4)), ("prompts", (1, 2)))
}


def jobs(n, d, n_blocks, names=MEASURED):
    """CPU seconds and megabytes of the jobs of one run, by name, beyond those of a job that only starts."""
    starting, found = cost_of_jobs(8, 6, 2, names), cost_of_jobs(n, d, n_blocks, names)
    return {name: tuple(np.maximum(np.subtract(cost, starting[name]), 0.0)) for name, cost in found.items()}


@cache
def cost_of_jobs(n, d, n_blocks, names):
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder, n, d, n_blocks)
        if "identity_attention" in names:
            runs.run("identity_states")
        found = {name: runs.run(name) for name in names}
    return {name: (result["seconds"], result["megabytes"]) for name, result in found.items()}


def over_tokens(sizes, d):
    """Jobs of a run of one block, which is two states, each under two token rules; the pass has one block too."""
    found = {name: [] for name in MEASURED}
    for n in sizes:
        for name, cost in jobs(n, d, 1).items():
            found[name].append(cost)
    return found


def over_layers(sizes, n, d):
    found = {name: [] for name in MEASURED}
    for n_blocks in sizes:
        for name, cost in jobs(n, d, n_blocks).items():
            found[name].append(cost)
    return found


def over_heads(sizes, n):
    """The attention metrics of one block under one token rule, by its heads."""
    from kernels import attention

    from collapse.metrics.attention_entropy import attention_entropy
    from collapse.metrics.attention_tokens import attention_tokens
    from collapse.metrics.fiedler import fiedler

    calls = {
        "fiedler": lambda A: fiedler(A, True, 100, 1e-6),
        "attention_entropy": lambda A: attention_entropy(A, True),
        "attention_tokens": lambda A: attention_tokens(A, True),
    }
    found = {name: [] for name in calls}
    for n_heads in sizes:
        A = np.stack([attention(n, True, seed) for seed in range(n_heads)])
        for name, call in calls.items():
            # The control of uniform attention is computed once per job.
            call(A[:1])
            before = time.process_time()
            call(A)
            found[name].append((time.process_time() - before, A.nbytes / 2**20))
    return found


def over_passes(sizes, axis, d):
    """The forward pass and extraction, by tokens, layers or heads."""
    found = {"forward pass": [], "extraction": []}
    for size in sizes:
        shape = {"n": TOKENS, "n_blocks": 2, "n_heads": max(2, d // 64)} | {axis: size}
        cost = passes.measure(shape["n"], d, shape["n_blocks"], shape["n_heads"], 2, square=64)
        found["forward pass"].append((cost["forward"], np.nan))
        found["extraction"].append((cost["extraction"], np.nan))
    return found


def over_prompts(sizes, n, d):
    """A prompt is a run of its own: so many times the jobs of one."""
    found = {"all jobs of the runs": []}
    for n_prompts in sizes:
        costs = [cost for _ in range(n_prompts) for cost in jobs(n, d, 2, STATE_METRICS[:3]).values()]
        found["all jobs of the runs"].append((sum(s for s, _ in costs), max(m for _, m in costs)))
    return found


def exponent(sizes, values):
    """Slope of log(value) over log(size) by least squares; None where a value is none."""
    values = np.asarray(values, dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def table(axis, sizes, found):
    """One Markdown table: seconds at each size, exponents of time, memory at the ends and its exponent."""
    head = ["what", *(f"{size} {axis}" for size in sizes), "exponent", "last two", "memory", "exponent"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for name, costs in found.items():
        seconds, megabytes = zip(*costs)
        cells = [name, *(f"{value:.3g} s" for value in seconds)]
        cells += [_rounded(exponent(sizes, seconds)), _rounded(exponent(sizes[-2:], seconds[-2:]))]
        both = np.isfinite(megabytes[0])
        cells.append(f"{megabytes[0]:.0f} to {megabytes[-1]:.0f} MB" if both else "-")
        cells.append(_rounded(exponent(sizes, megabytes)))
        lines.append(f"| {' | '.join(cells)} |")
    dominant = [max(found, key=lambda name: found[name][place][0]) for place in range(len(sizes))]
    said = ", ".join(f"{name} at {size}" for size, name in zip(sizes, dominant))
    return "\n".join([*lines, "", f"Most time at each size: {said}."])


def _rounded(value):
    return "-" if value is None else f"{value:.2f}"


def machine():
    """The machine in words: cores and memory, nothing that names it."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {round(pages * size / 2**30)} GiB of memory, one thread per process"


def report(sizes, n, d):
    """The whole report as Markdown."""
    tokens, layers, heads, prompts = (sizes[axis] for axis in ("tokens", "layers", "heads", "prompts"))
    sections = {
        f"Tokens: jobs of a run of 2 states of width {d}": table("tokens", tokens, over_tokens(tokens, d)),
        f"Tokens: 2 blocks of width {d}": table("tokens", tokens, over_passes(tokens, "n", d)),
        f"Layers: jobs of a run of {n} tokens of width {d}": table("blocks", layers, over_layers(layers, n, d)),
        f"Layers: blocks of width {d}, {TOKENS} tokens": table("blocks", layers, over_passes(layers, "n_blocks", d)),
        f"Heads: attention metrics of one causal block, {n} tokens": table("heads", heads, over_heads(heads, n)),
        f"Prompts: three state metrics of runs of {n} tokens": table("prompts", prompts, over_prompts(prompts, n, d)),
    }
    parts = [f"## {title}\n\n{body}\n" for title, body in sections.items()]
    intro = (
        "# Growth of time and memory\n\n"
        f"Written by `make bench-growth` on a machine with {machine()}. CPU seconds and megabytes are those\n"
        "beyond a job that only starts (a fifth of a second and 95 MB, clusters one second and 190 MB); of passes and\n"
        "heads, those of the call. [README.md](README.md) says how to read it.\n"
    )
    return "\n".join([intro, *parts])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="print a run of seconds, whose numbers mean nothing")
    if parser.parse_args().tiny:
        print(report(TINY, 16, 8))
    else:
        REPORT.write_text(report(FULL, TOKENS, WIDTH), encoding="utf-8")
