"""Caption files: Markdown with a title, a caption and an alternative text."""

from pathlib import Path


def caption_text(title, caption, alternative):
    """Return a caption file's text."""
    return f"# {title}\n\n{caption}\n\nAlternative text: {alternative}\n"


def read_caption(path):
    """Return (title, caption, alternative text) of a caption file."""
    title, caption, alternative = Path(path).read_text(encoding="utf-8").strip().split("\n\n")
    return title.removeprefix("# "), caption, alternative.removeprefix("Alternative text: ")
