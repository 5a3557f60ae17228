"""Measure how time and memory grow with tokens, layers, heads and prompts, and write it to benchmarks/GROWTH.md.

An exponent is the slope of a straight line through the logarithms of size and cost, by least squares over the sizes of
its row that are above the noise; that between the last two stands beside it, since there constants weigh least.
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
from model import checkpoint

REPORT = Path(__file__).with_name("GROWTH.md")
WIDTH, TOKENS, BLOCKS, HEADS = 768, 256, 4, 12
# Seconds (and megabytes) below which the cost of a job is the difference of two starts, and counts as none.
NOISE = 0.03
MEASURED = ("clusters", *STATE_METRICS, "projections pca", "cluster_life")
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
    starting, found = start_of_jobs(names), cost_of_jobs(n, d, n_blocks, names)
    beyond = {name: np.subtract(cost, starting[name]) for name, cost in found.items()}
    return {name: tuple(np.where(cost > NOISE, cost, 0.0)) for name, cost in beyond.items()}


@cache
def start_of_jobs(names):
    """The least of three."""
    turns = [cost_of_jobs(8, 6, 2, names) for _ in range(3)]
    return {name: np.min([turn[name] for turn in turns], axis=0) for name in names}


def cost_of_jobs(n, d, n_blocks, names):
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder, n, d, n_blocks)
        found = {name: runs.run(name) for name in names}
    return {name: (result["seconds"], result["megabytes"]) for name, result in found.items()}


def over_runs(sizes, axis, d, n_blocks):
    """What one run takes, by its tokens (`n`) or blocks (`n_blocks`): its jobs, its attention, its pass, its file.

    The attention metrics are measured on one block under one token rule, and counted for all blocks and both rules.
    """
    found = {}
    for size in sizes:
        shape = {"n": TOKENS, "n_blocks": n_blocks} | {axis: size}
        costs = jobs(shape["n"], d, shape["n_blocks"])
        block = sum(seconds for ((seconds, _),) in over_heads([HEADS], shape["n"]).values())
        costs[f"attention metrics, {HEADS} heads"] = (2 * shape["n_blocks"] * block, np.nan)
        with checkpoint(d, shape["n_blocks"], max(1, d // 64), shape["n"]) as folder:
            passed = passes.measure(folder, shape["n"], 2, square=64)
        costs["forward pass"] = (passed["forward"], np.nan)
        costs["extraction without the pass"] = (max(passed["extraction"] - passed["forward"], 0.0), np.nan)
        for name, cost in costs.items():
            found.setdefault(name, []).append(cost)
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


def over_prompts(sizes, n, d):
    """A prompt is a run of its own."""
    names = STATE_METRICS[:3]
    found = {name: [] for name in names}
    for n_prompts in sizes:
        turns = [jobs(n, d, 4, names) for _ in range(n_prompts)]
        for name in names:
            costs = [turn[name] for turn in turns]
            found[name].append((sum(seconds for seconds, _ in costs), max(megabytes for _, megabytes in costs)))
    return found


def exponent(sizes, values):
    """Slope of log(value) over log(size) by least squares; None with fewer than two values above 0."""
    values = np.asarray(values, dtype=float)
    told = values > 0
    if told.sum() < 2:
        return None
    return float(np.polyfit(np.log(np.asarray(sizes)[told]), np.log(values[told]), 1)[0])


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
        f"Tokens: one run of {BLOCKS} blocks of width {d}": table("tokens", tokens, over_runs(tokens, "n", d, BLOCKS)),
        f"Layers: one run of {n} tokens of width {d}": table(
            "blocks", layers, over_runs(layers, "n_blocks", d, BLOCKS)
        ),
        f"Heads: attention metrics of one causal block, {n} tokens": table("heads", heads, over_heads(heads, n)),
        f"Prompts: three state metrics of runs of {n} tokens": table("prompts", prompts, over_prompts(prompts, n, d)),
    }
    parts = [f"## {title}\n\n{body}\n" for title, body in sections.items()]
    intro = (
        "# Growth of time and memory\n\n"
        f"Written by `make bench-growth` on a machine with {machine()}.\n"
        "CPU seconds and megabytes of jobs are those beyond a job that only starts (a fifth of a second and 95 MB,\n"
        "clusters one second and 190 MB), those of passes and attention of the call; jobs have both token rules.\n"
        "[README.md](README.md) says how to read it.\n"
    )
    return "\n".join([intro, *parts])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="print a run of seconds, whose numbers mean nothing")
    if parser.parse_args().tiny:
        print(report(TINY, 16, 8))
    else:
        REPORT.write_text(report(FULL, TOKENS, WIDTH), encoding="utf-8")
