"""A results folder for one tiny model, in which weights are drawn as the workflow does."""

import json

import numpy as np
from safetensors.numpy import load_file
from tiny_models import edit_tensors, make_model

from collapse.weights import draw, trained


class Lab:
    """A results folder for one model, laid out as the workflow does."""

    def __init__(self, root, kind, change=None, **config):
        self.root = root
        self.snapshot = make_model(kind, root / "results" / "models" / "tiny" / "snapshot", **config)
        if change:
            edit_tensors(self.snapshot, change)
        self.source = root / "results" / "models" / "tiny" / "source.json"
        source = {"model": "tiny", "source": {"kind": "local"}, "revision": "local"}
        self.source.write_text(json.dumps(source), encoding="utf-8")

    def path(self, slug):
        return self.root / "results" / "weights" / "tiny" / slug

    def trained(self):
        target = self.path("trained")
        trained(self.snapshot, self.source, target / "checkpoint", target / "weights.json")
        return target

    def drawn(self, seed=0, norms="keep", slug=None, **scheme):
        target = self.path(slug or "-".join(["norm-matched", norms, f"s{seed}", *map(str, scheme.values())]))
        if not target.exists():
            if not self.path("trained").exists():
                self.trained()
            outputs = target / "checkpoint", target / "weights.json"
            inputs = self.path("trained") / "checkpoint", self.path("trained") / "weights.json"
            draw(*inputs, definition(seed, norms, **scheme), *outputs)
        return target


def definition(seed=0, norms="keep", scheme="norm-matched", components=("all",), biases="keep"):
    vectors = {} if scheme == "library-init" else {"norms": norms, "biases": biases}
    return {"scheme": scheme, "seed": seed, "components": list(components)} | vectors


def arrays(target):
    return load_file(target / "checkpoint" / "model.safetensors")


def record(target):
    return json.loads((target / "weights.json").read_text(encoding="utf-8"))


def norm(array):
    return float(np.linalg.norm(array.astype(np.float64)))
