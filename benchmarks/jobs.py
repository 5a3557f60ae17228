"""The jobs of one run, each a call of its script: what they start with, what they compute with, what they hold."""

from pathlib import Path

from model import states_file
from runner import run

from collapse.registry import METHOD_OPTIONS, METRICS, module

OPTIONS = {
    "energy": {"tolerance": 1e-6},
    "clusters": {"min_cluster_size": 2, "min_samples": None, "null_draws": 3, "row_orders": 1, "seed": 0},
    "cluster_life": {"count_tolerance": 0.1, "ari_tolerance": 0.2, "rank_tolerance": 0.1},
    "projections": {"seed": 0, "perplexity": 30, "n_neighbors": 15, "depths": [0.6], "tokens": ["content"]},
    "fiedler": {"rounds": 100, "tolerance": 1e-6},
}
STATE_METRICS = ("inner_products", "energy", "effective_rank", "cka", "nn_stability", "spectral_k", "pair_groups")
DYNAMICS = {"beta": 1.0, "step": 1.0, "steps": None}


def parameters(metric):
    """What a rule hands to the script of a metric."""
    packages = list(METRICS[metric].packages)
    return {"name": metric, "module": module(metric), "over": METRICS[metric].over, "packages": packages}


class Runs:
    """One run of n tokens, d dimensions and so many blocks, and the jobs that measure it.

    `clusters` comes before what is measured on clusters, `identity_states` before `identity_attention`.
    """

    def __init__(self, folder, n, d, n_blocks):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.states = self.folder / "states.parquet"
        states_file(self.states, n, d, n_blocks)

    def path(self, name):
        return self.folder / f"{name}.parquet"

    def names(self, layouts=True):
        """The jobs that there are, in an order in which they can run."""
        projections = [f"projections {method}" for method in METHOD_OPTIONS if layouts or method == "pca"]
        of_clusters = ["cluster_life", "cluster_membership", "attention_received"]
        return ["clusters", *STATE_METRICS, *projections, "identity_states", "identity_attention", *of_clusters]

    def run(self, name):
        """Run a job by its name, see `runner.run`."""
        metric, _, method = name.partition(" ")
        return getattr(self, f"_{metric}", self._metric)(metric, method)

    def _metric(self, metric, method):
        params = {"metric": parameters(metric), "options": OPTIONS.get(metric, {}), "code": "none"}
        if metric == "energy":
            params["beta"] = 1.0
        if method:
            used = METHOD_OPTIONS[method]
            params |= {"method": method, "options": {key: OPTIONS[metric][key] for key in used}}
        inputs = {"states": self.states}
        if "labels" in METRICS[metric].over:
            inputs["labels"] = self.path("cluster_labels")
        outputs = {"table": self.path(f"{metric} {method}".strip())}
        return run("metric.py", self.folder, input=inputs, output=outputs, params=params)

    def _clusters(self, metric, _):
        outputs = {"table": self.path("clusters"), "tokens": self.path("cluster_labels")}
        params = {"metric": parameters(metric), "options": OPTIONS[metric], "code": "none"}
        return run("clusters.py", self.folder, input={"states": self.states}, output=outputs, params=params)

    def _identity_states(self, *_):
        params = {"weights": "identity-b1", "dynamics": DYNAMICS}
        outputs = {"states": self.path("identity")}
        return run("identity_states.py", self.folder, input={"states": self.states}, output=outputs, params=params)

    def _identity_attention(self, *_):
        names = ("attention_entropy", "attention_tokens", "fiedler")
        params = {
            "metrics": [parameters(name) for name in names],
            "options": {name: OPTIONS.get(name, {}) for name in names},
            "code": dict.fromkeys(names, "none"),
        }
        outputs = {name: self.path(name) for name in names}
        inputs = {"states": self.path("identity")}
        return run("identity_attention.py", self.folder, input=inputs, output=outputs, params=params)

    def _attention_received(self, metric, _):
        inputs = {"states": self.states, "labels": self.path("cluster_labels"), "tokens": self.path("attention_tokens")}
        params = {"metric": parameters(metric), "code": "none"}
        outputs = {"table": self.path(metric)}
        return run("attention_received.py", self.folder, input=inputs, output=outputs, params=params)
