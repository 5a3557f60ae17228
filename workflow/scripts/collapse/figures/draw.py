"""Draw one figure and write its three files."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import matplotlib.figure
import pyarrow.compute as pc

from collapse import tables as results
from collapse.atomic import replacing, write_text
from collapse.captions import caption_text
from collapse.figures import style


@dataclass
class Drawing:
    """A drawn figure with its words.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    title : str
        One line.
    caption : str
        What it shows: quantity and definition, models, weights, prompts, token rule, band.
    alternative : str
        What a reader who cannot see it should know.
    """

    figure: matplotlib.figure.Figure
    title: str
    caption: str
    alternative: str


def draw(name, subject, module, model, depths, tables, svg, png, caption):
    """Draw the figure `name` (of `subject`, if it has one) and write SVG, PNG at 300 dpi and caption.

    Parameters
    ----------
    name, subject, module : str
        The figure, what it is drawn for (a model, a beta, or nothing), and the module that draws it.
    model : str or None
        The model that the figure is of: of the others nothing is kept in memory.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained.
    tables : list of path
        Results tables; the module gets them as {table name: DataFrame}.
    svg, png, caption : path
        Outputs. The caption is Markdown: title, caption, alternative text.
    """
    style.apply()
    frames = {Path(path).stem: _frame(path, model) for path in tables}
    drawing = importlib.import_module(module).draw(name, subject, frames, depths)
    for path, kind in ((svg, "svg"), (png, "png")):
        with replacing(path) as temporary:
            metadata = {"Date": None} if kind == "svg" else None
            drawing.figure.savefig(temporary, format=kind, metadata=metadata)
    write_text(caption, caption_text(drawing.title, drawing.caption, drawing.alternative))


def _frame(path, model):
    table = results.read(path, Path(path).stem)
    return (table.filter(pc.field("model") == model) if model else table).to_pandas()
