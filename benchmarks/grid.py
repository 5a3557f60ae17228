"""The jobs around those that measure a run: from a model to its attention, from a grid's files to its pages."""

import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
from jobs import OPTIONS, Runs, parameters
from model import REPOSITORY, snapshot, states_file
from runner import run

from collapse import tables
from collapse.claims_file import read_claims
from collapse.config import schemes
from collapse.explorer_curves import TABLES as EXPLORER_TABLES
from collapse.files import sha256_of
from collapse.registry import FIGURES
from collapse.states import StatesFile

ATTENTION = ("attention_entropy", "attention_tokens", "fiedler")
TEMPLATES = REPOSITORY / "workflow" / "report"
FIGURE = "mean_inner_product"
N_FIGURES = 44


def every_job(folder, n, d, n_blocks, n_heads, grid, layouts=True):
    """Yield (name, call) of a job of every script and every metric; each is called before the next is asked for.

    Parameters
    ----------
    folder : path
    n, d, n_blocks, n_heads : int
        Tokens, width, blocks and heads of every run.
    grid : tuple of int
        Models, seeds and prompts of the results.
    layouts : bool
        Whether t-SNE and UMAP run.
    """
    places = [Path(folder) / name for name in ("models", "runs", "results")]
    models = Models(places[0], n, d, n_blocks, n_heads)
    yield from ((name, partial(models.run, name)) for name in models.names)
    runs = Runs(places[1], n, d, n_blocks)
    yield from ((name, partial(runs.run, name)) for name in runs.names(layouts))
    results = Results(runs, places[2], *grid)
    results.prepare()
    yield from ((name, partial(results.run, name)) for name in results.names)


class Models:
    """One model of the shape of GPT-2 with random weights, in the order in which the workflow comes to it."""

    names = ("fetch", "trained_weights", "draw_weights", "extract", "attention")

    def __init__(self, folder, n, d, n_blocks, n_heads):
        self.folder = Path(folder)
        self.n = n
        source = snapshot(self.folder / "source", d, n_blocks, n_heads, n)
        pins = {"model.safetensors": sha256_of(source / "model.safetensors")}
        self.source = {"kind": "local", "path": source, "sha256": pins}
        self.prompt = self.folder / "prompt.txt"
        self.prompt.write_text("The ferry left in the fog. " * (n // 20 + 1), encoding="utf-8")

    def run(self, name):
        """Run a job by its name, see `runner.run`."""
        return getattr(self, f"_{name}")()

    def _at(self, place):
        return self.folder / "results" / place

    def _weights(self):
        trained = self._at("weights/shape/trained")
        return {"trained": trained / "checkpoint", "trained_record": trained / "weights.json"}

    def _fetch(self):
        outputs = {"snapshot": self._at("models/shape/snapshot"), "record": self._at("models/shape/source.json")}
        params = {"source": self.source, "lock": None}
        return run("fetch.py", self.folder, output=outputs, params=params, wildcards={"model": "shape"})

    def _trained_weights(self):
        inputs = {"snapshot": self._at("models/shape/snapshot"), "source": self._at("models/shape/source.json")}
        outputs = {"checkpoint": self._weights()["trained"], "record": self._weights()["trained_record"]}
        return run("trained_weights.py", self.folder, input=inputs, output=outputs)

    def _draw_weights(self):
        inputs = {"checkpoint": self._weights()["trained"], "record": self._weights()["trained_record"]}
        drawn = self._at("weights/shape/norm-matched-s0")
        keep = {"norms": "keep", "biases": "keep"}
        definition = {"scheme": "norm-matched", "seed": 0, "components": ["all"], **keep}
        params = {"checkpoint": drawn / "checkpoint", "definition": definition}
        outputs = {"record": drawn / "weights.json"}
        return run("draw_weights.py", self.folder, input=inputs, output=outputs, params=params)

    def _extract(self):
        inputs = {**self._weights(), "record": self._weights()["trained_record"], "prompt": self.prompt}
        params = {
            "run": {"model": "shape", "weights": "trained", "prompt": "p"},
            "checkpoint": self._weights()["trained"],
            "weights": {"scheme": "trained"},
            "depth": None,
            "max_tokens": self.n,
            "device": "cpu",
        }
        outputs = {"states": self._at("states.parquet")}
        return run("extract.py", self.folder, input=inputs, output=outputs, params=params)

    def _attention(self):
        inputs = {**self._weights(), "record": self._weights()["trained_record"], "states": self._at("states.parquet")}
        params = {
            "checkpoint": self._weights()["trained"],
            "depth": None,
            "device": "cpu",
            "metrics": [parameters(name) for name in ATTENTION],
            "options": {name: OPTIONS.get(name, {}) for name in ATTENTION},
            "code": dict.fromkeys(ATTENTION, "none"),
        }
        outputs = {name: self._at(f"{name}.parquet") for name in ATTENTION}
        return run("attention.py", self.folder, input=inputs, output=outputs, params=params)


class Results:
    """The tables, figures and pages of a grid whose every run is a copy of one, under a name of its own.

    Parameters
    ----------
    runs : Runs
        All of whose jobs have run.
    folder : path
        Where the grid goes.
    n_models, n_seeds, n_prompts : int
        Its size: each model has trained weights, and random ones of so many seeds.
    """

    names = (
        "aggregate inner_products",
        "aggregate cluster_labels",
        "runs_table",
        "score_claims",
        f"draw_figure {FIGURE}",
        "draw_figure clusters",
        "write_report",
        "write_explorer",
    )

    def __init__(self, runs, folder, n_models, n_seeds, n_prompts):
        self.folder = Path(folder)
        self.models = [f"model-{number}" for number in range(n_models)]
        random = [(f"norm-matched-s{seed}", "norm-matched", seed) for seed in range(n_seeds)]
        self.weights = [("trained", "trained", None), *random]
        self.prompts = [f"prompt-{number}" for number in range(n_prompts)]
        self.runs = [(m, w, p) for m in self.models for w in self.weights for p in self.prompts]
        self.files = {"runs": [], **_measured(runs)}
        self.states = {}
        facts = StatesFile(runs.states).metadata
        for model, weights, prompt in self.runs:
            path = self._at(f"states/{model}/{weights[0]}/{prompt}.parquet")
            # What comes after metrics reads no states, only their tokens.
            states_file(path, facts["n_tokens"], 1, facts["n_blocks"], model, weights, prompt)
            self.states[model, weights, prompt] = path
        self.copies = {name: list(self._copies(name, at)) for name, at in self.files.items() if name != "runs"}

    def _at(self, place):
        path = self.folder / "results" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _table(self, name):
        return self._at(f"tables/{name}.parquet")

    def _copies(self, table, path):
        """Write the file of one run once for every run of the grid, with its names; yield the paths."""
        data, record = tables.read(path, table), tables.record(path)
        axis = {"energy": "b1/", "projections": "pca/"}.get(table, "")
        for model, (slug, scheme, seed), prompt in self.runs:
            named = {"model": model, "weights": slug, "scheme": scheme, "seed": seed, "prompt": prompt}
            columns = [
                pa.array([named[field.name]] * len(data), type=field.type) if field.name in named else data[field.name]
                for field in data.schema
            ]
            states = StatesFile(self.states[model, (slug, scheme, seed), prompt]).metadata
            copy = self._at(f"metrics/{table}/{axis}{model}/{slug}/{prompt}.parquet")
            tables.write(copy, table, pa.table(columns, names=data.schema.names), record | {"states": states})
            yield copy

    def prepare(self):
        """Gather the tables that no job of `names` gathers, as the workflow does."""
        for table in self.copies:
            if f"aggregate {table}" not in self.names:
                self._aggregate(table)

    def run(self, name):
        """Run a job by its name, see `runner.run`."""
        script, _, subject = name.partition(" ")
        return getattr(self, f"_{script}")(subject)

    def _aggregate(self, table):
        params = {"table": table, "runs": ["/".join((m, w[0], p)) for m, w, p in self.runs]}
        outputs = {"table": self._table(table)}
        return run("aggregate.py", self.folder, input={"files": self.copies[table]}, output=outputs, params=params)

    def _runs_table(self, _):
        inputs = {"states": list(self.states.values())}
        return run("runs_table.py", self.folder, input=inputs, output={"table": self._table("runs")})

    def _score_claims(self, _):
        claims, _ = read_claims(REPOSITORY / "config" / "claims.yaml", self.models, schemes())
        claimed = {test["table"] for claim in claims for test in claim["tests"]} - {"runs"}
        inputs = {"tables": [self._table(name) for name in ("runs", *sorted(claimed & set(self.copies)))]}
        outputs = {"table": self._table("claims"), "text": self._at("claims.tsv")}
        params = {"claims": claims, "models": self.models, "trained_depths": {}, "code": "none"}
        return run("score_claims.py", self.folder, input=inputs, output=outputs, params=params)

    def _draw_figure(self, name):
        entry = FIGURES[name]
        model = self.models[0] if entry.per == "model" else None
        figure = {"name": name, "subject": model or "", "module": f"collapse.figures.{entry.module}", "model": model}
        ends = {"svg": "svg", "png": "png", "caption": "md"}
        outputs = {kind: self._at(f"figures/{name}.{end}") for kind, end in ends.items()}
        inputs = {"tables": [self._table(table) for table in entry.tables]}
        params = {"figure": figure | {"depths": {}}}
        return run("draw_figure.py", self.folder, input=inputs, output=outputs, params=params)

    def _write_report(self, _):
        # One drawing, as often as the demo's report embeds one.
        figures = [f"{FIGURE}/copy-{number}" for number in range(N_FIGURES)]
        for copy in figures:
            for end in ("svg", "md"):
                shutil.copy(self._at(f"figures/{FIGURE}.{end}"), self._at(f"figures/{copy}.{end}"))
        inputs = {
            "tables": [self._table(name) for name in self.files],
            "claims": self._table("claims"),
            "template": TEMPLATES / "index.html.j2",
        }
        params = {
            "figures": dict.fromkeys(figures, FIGURES[FIGURE].question),
            "explorer": ["explorer.html"],
            "config": {"prompts": self.prompts},
        }
        outputs = {"page": self._at("report/index.html")}
        return run("write_report.py", self.folder, input=inputs, output=outputs, params=params)

    def _write_explorer(self, _):
        inputs = {
            "tables": [self._table(name) for name in self.files if name in EXPLORER_TABLES],
            "states": [path for (_, weights, _), path in self.states.items() if weights == self.weights[0]],
            "template": TEMPLATES / "explorer.html.j2",
            "javascript": TEMPLATES / "explorer.js",
            "stylesheet": TEMPLATES / "explorer.css",
        }
        outputs = {"page": self._at("report/explorer.html"), "folder": self._at("report/explorer")}
        # What the copies hold.
        return run("write_explorer.py", self.folder, input=inputs, output=outputs, params={"methods": ["pca"]})


def _measured(runs):
    """{table: file} of all that the jobs of one run wrote."""
    found = {}
    for path in sorted(runs.folder.glob("*.parquet")):
        record = tables.record(path)
        if record and "table" in record:
            found.setdefault(record["table"], path)
    return found
