"""Plots as PNG files: heat-maps in panels, and lines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # no display is needed
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

Matrix = Sequence[Sequence[float]]
COLUMNS = 4
FEW_CELLS = 150  # so many can have their numbers written into them


def heatmaps(
    path: Path,
    panels: Mapping[str, Matrix],
    *,
    title: str,
    x: tuple[str, Sequence[object]],
    y: tuple[str, Sequence[object]],
    value: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """One panel per name: a matrix of rows (y) and columns (x). `x` and `y` are a label and the names of the ticks."""
    columns = min(COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    size = (1.5 + columns * max(2.8, 0.45 * len(x[1])), 1.2 + lines * max(2.6, 0.3 * len(y[1])))
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    low, high = limits or _limits(panels.values())
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, matrix) in zip(grid.flat, panels.items(), strict=False):
        image = axes.imshow(matrix, vmin=low, vmax=high, cmap="viridis", aspect="auto", interpolation="nearest")
        axes.set_title(name, fontsize=9)
        _label(axes, x, y)
        _write_numbers(axes, matrix, (low + high) / 2)
    figure.colorbar(image, ax=grid, label=value, shrink=0.8)
    _save(figure, path, title)


def lines(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    *,
    title: str,
    x: str,
    y: str,
    reference: tuple[str, float] | None = None,
    log_shares: bool = False,
) -> None:
    """One panel per name, all with the same lines by name, each through points (x, y).

    `reference` is a name and a height for a dashed line across. With `log_shares` x is a part of a whole,
    shown in % on a logarithmic axis.
    """
    size = (3 + 6 * len(panels), 5.5)
    figure, grid = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axes, (panel, series) in zip(grid.flat, panels.items(), strict=True):
        for index, (name, points) in enumerate(series.items()):
            style = {"marker": "osv^Dx*P"[index // 10 % 8], "markersize": 5, "linewidth": 1.3}
            axes.plot(*zip(*sorted(points), strict=True), label=name, **style)
        if reference is not None:
            axes.axhline(reference[1], color="black", linestyle="--", linewidth=1, label=reference[0])
        if log_shares:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(panel, fontsize=9)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel(y)
    grid[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path, title)


def _limits(matrices: Iterable[Matrix]) -> tuple[float, float]:
    values = [value for matrix in matrices for row in matrix for value in row]
    return min(values), max(values)


def _label(axes: Axes, x: tuple[str, Sequence[object]], y: tuple[str, Sequence[object]]) -> None:
    axes.set_xticks(range(len(x[1])), [str(tick) for tick in x[1]], fontsize=7, rotation=45 if len(x[1]) > 5 else 0)
    axes.set_yticks(range(len(y[1])), [str(tick) for tick in y[1]], fontsize=7)
    axes.set_xlabel(x[0], fontsize=8)
    axes.set_ylabel(y[0], fontsize=8)


def _write_numbers(axes: Axes, matrix: Matrix, middle: float) -> None:
    if sum(map(len, matrix)) > FEW_CELLS:
        return
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            color = "white" if value < middle else "black"
            axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6, color=color)


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
