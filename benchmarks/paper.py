"""The paper's grid at full size, as `make bench-paper` runs it: what it costs, beside what it could not cost less than.

In one folder, and taken up where it was left (--minutes stops it in time, and what it took so far is added up):

1. models of the study's shapes are made (benchmarks/standins.py), and a config from config/paper.yaml;
2. one bare forward pass over the grid is timed: every model, prompt and kind of weights, nothing kept;
3. the workflow runs the grid to figures and report;
4. the straightforward pipeline (benchmarks/straightforward.py) measures a sample of the same runs.

All of it runs as many single-threaded processes at once as there are cores, since cores that share arithmetic take
longer for the same work when all are busy. benchmarks/PAPER.md is what came out.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path[:0] = [str(HERE), str(REPOSITORY / "workflow" / "scripts")]

from straightforward import Seconds, run_attention, run_states  # noqa: E402

from collapse.config import load  # noqa: E402
from collapse.measure import places_at  # noqa: E402
from collapse.states import StatesFile  # noqa: E402
from collapse.token_rules import TOKEN_RULES  # noqa: E402

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
WAYS = ("ours", "straightforward")
# One run of each kind of model, at a long prompt.
SAMPLE = ["gpt2", "gpt2-large", "albert-base-v2", "bert-large-uncased"]
SAMPLE_PROMPT = "encyclopedia_paragraph"


def prepare(folder, models, prompts):
    """Make the models and the config that asks for them; return the path of the config."""
    from standins import make, tokenizers_like_gpt2

    config = yaml.safe_load((REPOSITORY / "config" / "paper.yaml").read_text(encoding="utf-8"))
    with open(REPOSITORY / "resources" / "prompts" / "prompts.tsv", encoding="utf-8", newline="") as file:
        table = {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
    texts = [(REPOSITORY / "resources" / "prompts" / row["file"]).read_text("utf-8") for row in table.values()]
    tokenizer = tokenizers_like_gpt2(texts, sum(int(row["gpt2_tokens"]) for row in table.values()))
    config["models"] = [model for model in config["models"] if model["name"] in models]
    for model in config["models"]:
        directory = folder / "models" / model["name"]
        print(f"model {model['name']}", flush=True)
        digest = make(model["name"], directory, tokenizer)
        model["source"] = {"kind": "local", "path": str(directory), "sha256": {"model.safetensors": digest}}
    config["prompts"] = [prompt for prompt in config["prompts"] if prompt in prompts]
    config["weights"] = [{"scheme": "trained"}, {"scheme": "norm-matched", "seeds": [0]}]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def bare_passes(job):
    """Return seconds of CPU of one model's forward passes over all prompts, loading not counted, and their tokens."""
    directory, depth, texts, max_tokens = job
    import torch
    import transformers

    torch.set_num_threads(1)
    settings = {"num_hidden_layers": depth} if depth else {}
    model = transformers.AutoModel.from_pretrained(directory, **settings).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    started, n_tokens = time.process_time(), 0
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer(text, truncation=True, max_length=max_tokens, return_tensors="pt")["input_ids"]
            model(ids)
            n_tokens += ids.shape[1]
    return time.process_time() - started, n_tokens


def run_workflow(config_path, folder, cores, minutes):
    """Run the grid towards the report, until it is there or for so many minutes and the jobs that then run.

    Returns
    -------
    dict
        `wall` and `cpu`, in seconds and of all its processes, and `code`, None if it was stopped.
    """
    command = [sys.executable, "-m", "snakemake", "all", "--snakefile", str(REPOSITORY / "Snakefile")]
    command += ["--cores", str(cores), "--resources", f"mem_mb={memory_mb()}"]
    command += ["--workflow-profile", str(REPOSITORY / "profiles" / "default")]
    command += ["--directory", str(folder), "--configfile", str(config_path)]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(folder / "snakemake.log", "a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ONE_THREAD)
        try:
            code = process.wait(60 * minutes if minutes else None)
        except subprocess.TimeoutExpired:
            # Snakemake then starts no more jobs and waits for those that run.
            process.terminate()
            process.wait()
            code = None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - began, "cpu": cpu, "code": code}


def memory_mb():
    """Memory of this machine in megabytes."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6)


def rule_times(folder):
    """Return {rule or metric: jobs, seconds, largest peak in MB}, longest first, from Snakemake's benchmark files."""
    found = defaultdict(lambda: {"jobs": 0, "seconds": 0.0, "peak_mb": 0.0})
    root = folder / "results" / "benchmarks"
    for path in root.rglob("*.tsv"):
        parts = path.relative_to(root).parts
        row = benchmark(path)
        entry = found[parts[1] if parts[0] == "metrics" else parts[0].removesuffix(".tsv")]
        entry["jobs"] += 1
        entry["seconds"] += float(row["s"])
        # A job that ended before it was looked at has no peak.
        if row["max_rss"] not in ("NA", "-"):
            entry["peak_mb"] = max(entry["peak_mb"], float(row["max_rss"]))
    return dict(sorted(found.items(), key=lambda item: -item[1]["seconds"]))


def benchmark(path):
    """Return the one row of a benchmark file."""
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file, delimiter="\t"))


def straightforward_beside_ours(job):
    """Measure one run both ways; return the seconds of each.

    Of states every layer is measured; ours are the whole metric jobs, start-up and all. Of attention the first block is
    measured, ours by the code of the attention job: the pass that yields it is the same for both and not counted.
    """
    folder, config_path, model, weights, prompt = job
    import torch

    from collapse.attention_pass import model_attention
    from collapse.attention_tables import AttentionTables
    from collapse.registry import METRICS, module

    torch.set_num_threads(1)
    config, grid = load(yaml.safe_load(Path(config_path).read_text(encoding="utf-8")), REPOSITORY)
    run = f"{model}/{weights}/{prompt}"
    path = folder / "results" / "states" / f"{run}.parquet"
    states = StatesFile(path)
    tokens = states.tokens()
    masks = {rule: states.mask(rule) for rule in TOKEN_RULES}
    loaded = [(*states.states[place], states.read(place)) for place in range(len(states))]
    places = places_at(states, config["projections"]["depths"])
    rows, of_states = run_states(loaded, masks, tokens["token_id"].to_numpy(), config, places)
    ours_states = sum(
        float(benchmark(found)["s"])
        for found in (folder / "results" / "benchmarks" / "metrics").rglob(f"{prompt}.tsv")
        if found.parts[-3:] == (model, weights, f"{prompt}.tsv")
    )

    names = [name for name in grid.metrics if METRICS[name].over == "attention"]
    metrics = [{"name": name, "module": module(name), "packages": []} for name in names]
    tables = AttentionTables(path, metrics, {name: config.get(name, {}) for name in names})
    seconds = {}

    def take(block, A):
        if block == 0:
            own = Seconds()
            own.call("attention", tables.take, block, A)
            seconds["ours"] = own.total()
            is_punctuation = tokens["is_punctuation"].to_numpy(zero_copy_only=False)
            labels = rows["cluster_labels"]
            _, plain = run_attention(
                [A], masks, states.metadata["is_causal"], is_punctuation, labels, {"fiedler": config["fiedler"]}
            )
            seconds["straightforward"] = plain.total()

    # The trained stand-in's checkpoint stays; random ones are discarded when the workflow is done.
    checkpoint = folder / "results" / "weights" / model / weights / "checkpoint"
    model_attention(path, checkpoint, states.metadata["weights_hash"], "cpu", 1, take, depth=grid.depths.get(model))
    n_blocks = states.metadata["n_blocks"]
    return {
        "run": run,
        "n_tokens": states.metadata["n_tokens"],
        "n_blocks": n_blocks,
        "states": {"ours": ours_states, "straightforward": of_states.total()},
        "attention": {name: n_blocks * value for name, value in seconds.items()},
    }


def state_bytes(folder):
    """Bytes of the states files over those of the float32 numbers in them."""
    stored = raw = 0
    for path in (folder / "results" / "states").rglob("*.parquet"):
        states = StatesFile(path)
        stored += path.stat().st_size
        raw += 4 * len(states) * states.metadata["n_tokens"] * states.metadata["dimension"]
    return stored / raw


def disk_bytes(folder):
    """Bytes of all files below a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def table(header, rows):
    """Lines of a Markdown table."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def page(record, cores):
    """Return what PAPER.md says of a finished benchmark."""
    bare, sample = record["bare"], record["sample"]
    workflow = {key: sum(part[key] for part in record["parts"]) for key in ("wall", "cpu")}
    bare_cpu = 2 * sum(seconds for seconds, _ in bare.values())
    n_tokens = 2 * sum(n for _, n in bare.values())
    busy = workflow["cpu"] / (cores * workflow["wall"])
    ours, plain = (sum(run[part][way] for run in sample for part in ("states", "attention")) for way in WAYS)
    results = [
        ["CPU time over that of the bare forward passes", f"{workflow['cpu'] / bare_cpu:.1f}", "at most 5"],
        ["share of the cores that was busy", f"{busy:.2f}", "at least 0.85"],
        ["CPU time of the straightforward metrics over ours", f"{plain / ours:.1f}", "at least 4"],
        ["bytes of the states files over their float32 numbers", f"{record['state_bytes']:.2f}", "at most 1.1"],
    ]
    rules = [
        [name, entry["jobs"], f"{entry['seconds']:.0f}", f"{entry['seconds'] / entry['jobs']:.1f}", _peak(entry)]
        for name, entry in record["rules"].items()
    ]
    side = [
        [
            run["run"],
            run["n_tokens"],
            *(f"{run[part][way]:.0f}" for part in ("states", "attention") for way in reversed(WAYS)),
        ]
        for run in sample
    ]
    models = [[name, n, f"{seconds:.0f}"] for name, (seconds, n) in bare.items()]
    return "\n".join(
        [
            "# The paper's grid, measured",
            "",
            f"Written by `make bench-paper`, on {cores} cores and {memory_mb() / 1000:.0f} GB. Models have "
            "the shapes of the study's and random weights, since what it costs needs no hub: "
            f"{len(bare)} models, {len(record['prompts'])} prompts ({', '.join(record['prompts'])}), trained stand-in "
            f"and one random seed, {n_tokens} tokens in all, every metric and figure.",
            "",
            *table(["what", "measured", "asked for"], results),
            "",
            f"It took {workflow['wall'] / 60:.0f} minutes of wall and {workflow['cpu'] / 60:.0f} of CPU time, "
            f"the bare passes {bare_cpu / 60:.0f} minutes of CPU. Results take {record['disk'] / 1e9:.1f} GB; random "
            "checkpoints are not counted, since they are drawn again when needed.",
            "",
            "## Time of each rule",
            "",
            "Seconds of wall time of its jobs, each on one thread, from Snakemake's benchmark files.",
            "",
            *table(["rule or metric", "jobs", "seconds", "a job", "largest peak, MB"], rules),
            "",
            "## Beside the straightforward pipeline",
            "",
            "Seconds for the same metrics of the same run, forward passes not counted. Of states, ours are whole jobs, "
            "with their start-up. Of attention one block was measured, and multiplied by the number of blocks.",
            "",
            *table(["run", "tokens", "states, plain", "states, ours", "attention, plain", "attention, ours"], side),
            "",
            "## Bare forward passes",
            "",
            "Seconds of CPU over all prompts, once; the random weights of the same shape cost the same.",
            "",
            *table(["model", "tokens", "seconds"], models),
            "",
        ]
    )


def _peak(entry):
    return f"{entry['peak_mb']:.0f}" if entry["peak_mb"] else "not seen"


def main():
    whole = yaml.safe_load((REPOSITORY / "config" / "paper.yaml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where models and results go; 40 GB for the whole grid")
    parser.add_argument("--models", nargs="+", default=[model["name"] for model in whole["models"]])
    parser.add_argument("--prompts", nargs="+", default=whole["prompts"])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, help="stop the workflow after these, to go on another time")
    parser.add_argument("--output", type=Path, default=HERE / "PAPER.md")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    config_path = prepare(folder, asked.models, asked.prompts)
    config, grid = load(yaml.safe_load(config_path.read_text(encoding="utf-8")), REPOSITORY)

    os.environ.update(ONE_THREAD)
    record_path = folder / "record.json"
    record = json.loads(record_path.read_text(encoding="utf-8")) if record_path.exists() else {}

    def keep():
        record_path.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def once(key, measure):
        """Measure what a run that was stopped has not measured yet."""
        if key not in record:
            print(f"{key} ...", flush=True)
            record[key] = measure()
            keep()
        return record[key]

    with ProcessPoolExecutor(asked.cores, mp_context=get_context("spawn")) as pool:
        texts = [Path(path).read_text(encoding="utf-8") for path in grid.prompts.values()]
        jobs = [
            (source["path"], grid.depths.get(name, {}).get("depth"), texts, config["max_tokens"])
            for name, source in grid.sources.items()
        ]
        once("prompts", lambda: list(grid.prompts))
        once("bare", lambda: dict(zip(grid.sources, pool.map(bare_passes, jobs))))
        parts = record.setdefault("parts", [])
        if not any(part["code"] == 0 for part in parts):
            print("workflow ...", flush=True)
            parts.append(run_workflow(config_path, folder, asked.cores, asked.minutes))
            keep()
            if parts[-1]["code"] is None:
                sys.exit(f"Stopped after {asked.minutes:g} minutes. Run the same again to go on.")
            if parts[-1]["code"]:
                sys.exit(f"The workflow failed: see {folder}/snakemake.log. What is done is kept: run the same again.")
        once("rules", lambda: rule_times(folder))
        prompt = SAMPLE_PROMPT if SAMPLE_PROMPT in grid.prompts else next(iter(grid.prompts))
        sample = [name for name in SAMPLE if name in grid.sources] or list(grid.sources)[:1]
        runs = [(folder, config_path, name, "trained", prompt) for name in sample]
        once("sample", lambda: list(pool.map(straightforward_beside_ours, runs)))
        once("state_bytes", lambda: state_bytes(folder))
        once("disk", lambda: disk_bytes(folder / "results"))
    asked.output.write_text(page(record, asked.cores), encoding="utf-8")
    print(f"Written: {asked.output}")


if __name__ == "__main__":
    main()
