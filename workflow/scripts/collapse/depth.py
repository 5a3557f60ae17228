"""How deep a model runs. Only one that shares its block can run deeper than it was trained: any other would run blocks
that transformers fills with fresh random numbers.
"""

from collapse.architectures import ARCHITECTURES
from collapse.errors import Refusal


def require_deepenable(model, config, depth, trained_depth):
    """Refuse to run a model to a depth at which its weights do not say what each block is.

    Parameters
    ----------
    model : str
        Its name, for the message.
    config : dict
        What config.json of its checkpoint says.
    depth, trained_depth : int
        Blocks to run, and blocks that it was trained with, as in the config.

    Raises
    ------
    Refusal
        If the model does not run one block at every depth, or was trained with another number of blocks.
    """
    kind = config.get("model_type")
    if not (kind in ARCHITECTURES and ARCHITECTURES[kind].shares_block):
        raise Refusal(
            f"{model}: is a {kind}, whose blocks have weights of their own: it cannot run {depth} of them. Take depth "
            "and trained_depth out of its entry (ALBERT alone has them)."
        )
    blocks = config.get("num_hidden_groups", 1) * config.get("inner_group_num", 1)
    if blocks != 1:
        raise Refusal(
            f"{model}: its {kind} has {blocks} blocks that take turns, and which runs where changes with the depth: "
            "take depth and trained_depth out of its entry"
        )
    if config["num_hidden_layers"] != trained_depth:
        raise Refusal(
            f"{model}: trained_depth is {trained_depth}, and its config.json says num_hidden_layers "
            f"{config['num_hidden_layers']}: write that"
        )
