"""Attention received by groups of tokens, over one run: from its tables of attention and clusters alone."""

from collapse import tables
from collapse.errors import Refusal
from collapse.geometry import nulls
from collapse.measure import cluster_labels, layer_keys, run_keys
from collapse.metrics.attention_received import COLUMNS, GROUPS, attention_received
from collapse.states import StatesFile
from collapse.token_rules import TOKEN_RULES


def attention_groups(states, labels, tokens):
    """Return the rows of the table attention_received.

    Parameters
    ----------
    states, labels, tokens : path
        States file, cluster_labels and attention_tokens of the same run.

    Raises
    ------
    Refusal
        If the tables are not of the tokens and layers of the states file.
    """
    file = StatesFile(states)
    is_punctuation = file.tokens()["is_punctuation"].to_numpy()
    n_blocks = file.metadata["n_blocks"]
    clusters, received = cluster_labels(labels), _received(tokens)
    rows = []
    for rule in TOKEN_RULES:
        mask = file.mask(rule)
        # The state that enters a block is neither the last nor that after the final norm.
        for layer, stage in file.states[:n_blocks]:
            place = (rule, layer, stage)
            keys = run_keys(file.metadata) | {"tokens": rule} | layer_keys(layer, stage, n_blocks)
            if not mask.any():
                rows += [
                    keys | {"group": group} | nulls(COLUMNS, "no tokens under this token rule") for group in GROUPS
                ]
                continue
            if not (place in clusters and place in received):
                raise Refusal(f"{labels} or {tokens}: layer {layer} is missing. Delete both and run again.")
            rows += [keys | row for row in attention_received(*received[place], is_punctuation[mask], clusters[place])]
    return rows


def _received(path):
    """Return {(token rule, layer, stage): (received, received_uniform), both None where undefined} of one run."""
    found = {}
    columns = ["tokens", "layer", "stage", "received", "received_uniform"]
    for row in tables.read(path, "attention_tokens").select(columns).to_pylist():
        pair = found.setdefault((row["tokens"], row["layer"], row["stage"]), ([], []))
        pair[0].append(row["received"])
        pair[1].append(row["received_uniform"])
    return {key: (None, None) if None in pair[0] else pair for key, pair in found.items()}
