"""What all figures share.

Each figure has a function that computes its data and one that draws it, so that tests can check
what is shown. Colours are Okabe and Ito's, distinguishable with any colour vision.
"""

import io
from pathlib import Path
from typing import Any

from .errors import UserError
from .files import write_atomically

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"
SKY, PURPLE = "#56B4E9", "#CC79A7"


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs: Any) -> Any:
    """Return a matplotlib figure of so many inches, and its axes [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG or SVG, by the suffix."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"figures are written as .png or .svg, got {path}.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())
