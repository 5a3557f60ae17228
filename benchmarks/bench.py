"""Print how fast the workflow is, as ratios measured in one run: benchmarks/README.md says how to read them."""

import argparse
import tempfile
from dataclasses import dataclass

import kernels
import passes
from jobs import STATE_METRICS, Runs
from runner import seconds_of


@dataclass(frozen=True)
class Size:
    """How large a bench is: tokens, widths, blocks, heads, turns of which the least counts, and whether layouts run."""

    n: int
    d: int
    wide: int
    n_blocks: int
    n_heads: int
    square: int
    turns: int
    layouts: bool


FULL = Size(n=512, d=768, wide=1280, n_blocks=12, n_heads=12, square=2048, turns=7, layouts=True)
TINY = Size(n=32, d=16, wide=24, n_blocks=2, n_heads=2, square=64, turns=1, layouts=False)
SMALLEST = {"n": 8, "d": 6, "n_blocks": 2}
IMPORTS = "import numpy, pyarrow"


def main(size):
    kernels_table(size)
    state_metrics_table(size)
    passes_table(size)
    jobs_table(size)


def kernels_table(size):
    _head(f"Kernels, {size.n} tokens", "straightforward", "workflow", "ratio", "target", "difference", "allowed")
    for name, kernel, slow, fast, off in kernels.compare(size.n, size.d, size.wide, size.turns):
        target = f">= {kernel.target:g}" if kernel.target else "-"
        _line(name, _ms(slow), _ms(fast), f"{slow / fast:.1f}", target, f"{off:.0e}", f"{kernel.error:.0e}")


def state_metrics_table(size):
    _head(f"State metrics, {size.n_blocks + 1} layers of {size.n} x {size.d}", "straightforward", "workflow", "ratio")
    total = [0.0, 0.0]
    for name, slow, fast in kernels.pipelines(size.n, size.d, size.n_blocks + 1):
        total = [total[0] + slow, total[1] + fast]
        _line(name, f"{slow:.2f} s", f"{fast:.2f} s", f"{slow / fast:.1f}" if fast else "-")
    _line("all", *(f"{seconds:.2f} s" for seconds in total), f"{total[0] / total[1]:.1f}")


def passes_table(size):
    found = passes.measure(size.n, size.d, size.n_blocks, size.n_heads, max(1, size.turns // 2), size.square)
    _head(f"Forward pass, {size.n_blocks} blocks of width {size.d}, {size.n} tokens", "value", "target")
    ratio = found["extraction"] / found["forward"]
    _line("extraction over the bare forward pass, CPU time", f"{ratio:.2f}", "<= 1.3")
    _line("extraction over the bare forward pass, wall time", f"{found['wall_ratio']:.2f}", "<= 1.3")
    _line("pass that hands out attention over the bare one", f"{found['attention'] / found['forward']:.2f}", "-")
    _line("forward pass", f"{found['forward_rate'] / 1e9:.1f} GFLOP/s", "-")
    _line(f"product of {size.square} x {size.square}", f"{found['product_rate'] / 1e9:.1f} GFLOP/s", "-")
    _line("forward pass over product, rates", f"{found['forward_rate'] / found['product_rate']:.2f}", "-")
    _line("bytes stored over bytes of float32 states", f"{found['stored_share']:.2f}", "<= 1.1")


def jobs_table(size):
    """A job on eight tokens and two blocks does nothing but start; the same on a run of full size does its work too."""
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        starting, working = Runs(small, **SMALLEST), Runs(large, size.n, size.d, size.n_blocks)
        imports, least = float("inf"), {}
        for turn in range(size.turns):
            imports = min(imports, seconds_of(IMPORTS))
            for name in starting.names(size.layouts):
                # It compiles for ten seconds.
                if name == "projections umap" and turn:
                    continue
                least[name] = min(least.get(name, float("inf")), starting.run(name)["seconds"])
        title = f"Jobs, {size.n_blocks + 1} states of {size.n} x {size.d}, CPU time"
        _head(title, "start-up", "its work", "start/work", f"start / ({IMPORTS})", "target", "most memory")
        for name, start in least.items():
            whole = working.run(name)
            work = max(whole["seconds"] - start, 0.0)
            target = "<= 2" if name in STATE_METRICS else "-"
            share = f"{start / work:.2f}" if work > 0 else "-"
            cells = (f"{start:.2f} s", f"{work:.2f} s", share, f"{start / imports:.2f}", target)
            _line(name, *cells, f"{whole['megabytes']:.0f} MB")


def _head(title, *columns):
    print(f"\n{title}")
    _line("", *columns)


def _line(name, *cells):
    print(f"  {name:<56}" + "".join(f"  {cell:>15}" for cell in cells), flush=True)


def _ms(seconds):
    return f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a run of seconds, whose numbers mean nothing")
    main(TINY if parser.parse_args().tiny else FULL)
