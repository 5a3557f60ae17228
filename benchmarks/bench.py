"""Print how fast the workflow is, as ratios measured in one run: benchmarks/README.md says how to read them."""

import argparse
import contextlib
import io
import tempfile
from dataclasses import dataclass

import kernels
import passes
from grid import every_job
from jobs import STATE_METRICS
from model import checkpoint, packaged, trained_checkpoint
from runner import HEAVY, seconds_of


@dataclass(frozen=True)
class Size:
    """How large a bench is: tokens, widths, blocks, heads, turns of which the least counts (`starts` of whole jobs),
    models, seeds and prompts of the grid, and whether layouts run.
    """

    n: int
    d: int
    wide: int
    n_blocks: int
    n_heads: int
    square: int
    turns: int
    starts: int
    grid: tuple
    layouts: bool


FULL = Size(
    n=512, d=768, wide=1280, n_blocks=12, n_heads=12, square=2048, turns=7, starts=3, grid=(2, 2, 4), layouts=True
)
TINY = Size(n=32, d=16, wide=24, n_blocks=2, n_heads=2, square=64, turns=1, starts=1, grid=(1, 1, 1), layouts=False)
SMALLEST = {"n": 8, "d": 6, "n_blocks": 2, "n_heads": 2, "grid": (1, 1, 1)}
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
    turns = max(1, size.turns // 2)
    with checkpoint(size.d, size.n_blocks, size.n_heads, size.n) as folder:
        found = passes.measure(folder, size.n, turns, size.square)
    _head(f"Forward pass, {size.n_blocks} blocks of width {size.d}, {size.n} tokens", "value", "target")
    _extraction("", found)
    _line("pass that hands out attention over the bare one", f"{found['attention'] / found['forward']:.2f}", "-")
    _line("forward pass", f"{found['forward_rate'] / 1e9:.1f} GFLOP/s", "-")
    _line(f"product of {size.square} x {size.square}", f"{found['product_rate'] / 1e9:.1f} GFLOP/s", "-")
    _line("forward pass over product, rates", f"{found['forward_rate'] / found['product_rate']:.2f}", "-")
    _line("bytes stored over bytes of float32 states", f"{found['stored_share']:.2f}", "<= 1.1")
    for name, snapshot, gguf_file in packaged():
        if snapshot is None:
            _line(f"{name}: its package is not installed here", "-", "-")
            continue
        # What reading them says is the workflow's to log.
        said = io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            trained_checkpoint(snapshot, gguf_file) as folder,
        ):
            found = passes.measure(folder, size.n, turns, size.square)
        _extraction(f"{name}, {found['n_tokens']} tokens: ", found)


def _extraction(name, found):
    _line(f"{name}extraction over the bare pass, CPU time", f"{found['extraction'] / found['forward']:.2f}", "<= 1.3")
    _line(f"{name}the same, wall time", f"{found['wall_ratio']:.2f}", "<= 1.3")


def jobs_table(size):
    """A job on eight tokens and two blocks does nothing but start; the same on a run of full size does its work too."""
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        imports, least, loads = float("inf"), {}, {}
        for name, call in every_job(small, **SMALLEST, layouts=size.layouts):
            # UMAP compiles for ten seconds.
            found = [call() for _ in range(1 if name == "projections umap" else size.starts)]
            least[name] = min(turn["seconds"] for turn in found)
            loads[name] = sorted(HEAVY & set(found[0]["packages"]))
            imports = min(imports, seconds_of(IMPORTS))
        models, seeds, prompts = size.grid
        _head(
            f"Jobs, {size.n_blocks + 1} states of {size.n} x {size.d}; from aggregate on, "
            f"{models * (1 + seeds) * prompts} such runs; CPU time",
            *("start-up", "its work", "start/work", f"start / ({IMPORTS})", "target", "most memory", "loads"),
        )
        shape = {"n": size.n, "d": size.d, "n_blocks": size.n_blocks, "n_heads": size.n_heads}
        for name, call in every_job(large, **shape, grid=size.grid, layouts=size.layouts):
            start, whole = least[name], call()
            work = max(whole["seconds"] - start, 0.0)
            target = "<= 2" if name in STATE_METRICS else "-"
            share = f"{start / work:.2f}" if work > 0 else "-"
            cells = (f"{start:.2f} s", f"{work:.2f} s", share, f"{start / imports:.2f}", target)
            _line(name, *cells, f"{whole['megabytes']:.0f} MB", ", ".join(loads[name]) or "-")


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
