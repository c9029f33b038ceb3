"""`nf.compare_formats`: the sequence, its table, JSON and picture."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.formats import FORMATS
from nvfp.errors import ArgumentError, DTypeError
from nvfp.inspect import FormatComparison
from nvfp.inspect._picture import _apart

MINE = nf.QuantDType("<mine>", element="int4", block=32, scale="bfloat16")

OVERFLOWS = nf.mxfp8.replace(scale_rule="floor", name="floor")  # a block of 1.5e4 is beyond its largest code
MANY = [
    MINE, *FORMATS.values(),
    *(row.replace(block=b) for row in (nf.nvfp4, nf.mxfp4, nf.mxfp6_e2m3, nf.mxfp8) for b in (8, 24, 64)),
]  # fmt: skip


def values(shape: tuple[int, ...] = (8, 96)) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_all_formats_and_given_ones(device: Any) -> None:
    x = nf.asarray(values())
    found = nf.compare_formats(x, axis=0)
    assert [r.dtype for r in found] == list(FORMATS.values()) and all(r.axis == 0 for r in found)
    assert list(found) == [nf.quant_error(x, row, axis=0) for row in FORMATS]
    assert [r.dtype.name for r in nf.compare_formats(x, (MINE, "nvfp4"))] == ["<mine>", "nvfp4"]
    assert len(nf.compare_formats(x, "nvfp4")) == len(nf.compare_formats(x, MINE)) == 1
    assert found[-1].dtype == nf.nvfp4 and isinstance(found[:2], FormatComparison) and len(found[:2]) == 2
    assert nf.compare_formats(values(), [MINE], rounding="toward_zero")[0] != nf.compare_formats(x, [MINE])[0]


def test_table() -> None:
    found = nf.compare_formats(values(), ["mxfp8", MINE])
    lines = repr(found).splitlines()
    assert lines[0].startswith("dtype       bits/value  SQNR dB") and len(lines) == 3
    ends = [m.end() for m in re.finditer(r"\S+(?: \S+)*", lines[0])][1:]
    for line in lines[1:]:  # numbers end where their headings end
        assert [m.end() for m in re.finditer(r"\S+", line)][1:] == ends
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3 and "&lt;mine&gt;" in shown and "<mine>" not in shown


WORDS = {"sqnr_db", "max_abs_error", "mean_error", "max_rel_error"}


def test_json_has_no_numbers_that_json_lacks() -> None:
    lost = nf.compare_formats(np.full((2, 32), 1.5e4, np.float32), [OVERFLOWS], overflow="nonsat")
    row = json.loads(lost.to_json(), parse_constant=pytest.fail)[0]
    assert {name for name, value in row.items() if value is None} == WORDS and row["nonfinite"] == 64
    assert repr(lost).splitlines()[1].split()[2:6] == ["nan", "nan", "-", "nan"]
    found = nf.compare_formats(np.zeros((2, 32), np.float32), ["mxfp8", "nvfp4"])
    rows = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert [row["dtype"] for row in rows] == ["mxfp8_e4m3", "nvfp4"] and rows[0]["sqnr_db"] is None
    assert found.as_dicts()[0]["sqnr_db"] == np.inf and "\n" not in found.to_json(indent=None)


def test_picture(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    figure = nf.compare_formats(values()).plot(tmp_path / "formats.png")
    assert (tmp_path / "formats.png").read_bytes()[:4] == b"\x89PNG" and not pyplot.get_fignums()
    labels = figure.axes[0].texts
    assert {text.get_text() for text in labels} == set(FORMATS)
    words = pytest.importorskip("matplotlib.text").Text.get_window_extent  # without the lines to the points
    boxes = [words(text) for text in labels]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_picture_of_many_formats() -> None:
    """Labels stay in the panel and apart, the legend on the page, and no color comes twice."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    found = nf.compare_formats(values(), MANY)
    figure = found.plot()
    figure.canvas.draw()
    panel, errors = figure.axes[:2]
    words = pytest.importorskip("matplotlib.text").Text.get_window_extent
    boxes, inside = [words(text) for text in panel.texts], panel.get_window_extent()
    assert len(boxes) == len(MANY) == 23
    assert all(inside.y0 - 2 <= box.y0 and box.y1 <= inside.y1 + 2 for box in boxes)
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    legend, page = errors.get_legend().get_window_extent(), figure.bbox
    assert legend.y0 >= page.y0 and legend.x1 <= page.x1 and legend.y1 <= page.y1
    assert len({tuple(line.get_color()) for line in errors.lines}) == len(MANY)
    pyplot.close(figure)


def test_labels_keep_apart_and_in_bounds() -> None:
    for places in ([0.0, 0.0, 0.0, 9.9, 10.0, 10.0], [5.0] * 10, [], [3.0]):
        moved = _apart(np.array(places), 1.0, 0.5, 9.5)
        assert all(0.5 <= m <= 9.5 for m in moved) and all(b - a >= 1 - 1e-9 for a, b in pairwise(moved))


def test_picture_tells_what_is_not_finite() -> None:
    """A dtype without a finite value has no point; one that lost some says how many."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    x = np.full((2, 32), 1.5e4, np.float32)
    x[1, 1:] = 3.0
    for part, told in ((x[:1], "floor (none finite)"), (x, "floor (33 not finite)")):
        figure = nf.compare_formats(part, [OVERFLOWS, "mxfp8"], overflow="nonsat").plot()
        panel, errors = figure.axes[:2]
        assert [text.get_text() for text in errors.get_legend().get_texts()] == [told, "mxfp8_e4m3"]
        assert len(panel.lines) == len(panel.texts) == (1 if "none" in told else 2)
        pyplot.close(figure)


def test_paths_that_cannot_be_saved(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    found = nf.compare_formats(values(), ["mxfp8"])
    for name in ("formats.bogus", "formats"):
        with pytest.raises(ArgumentError, match=rf"\[plot\] expected a path that ends in one of .*, got {name};"):
            found.plot(tmp_path / name)
    with pytest.raises(ArgumentError, match="expected a file to save to, got the folder"):
        found.plot(tmp_path)
    with pytest.raises(FileNotFoundError, match="make it first"):
        found.plot(tmp_path / "missing" / "formats.png")
    with pytest.raises(DTypeError, match=r"a path as str or os.PathLike, got int"):
        found.plot(3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()) and not pyplot.get_fignums()


def test_picture_of_unusual_numbers() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    figure, pair = pyplot.subplots(1, 2)
    for x in (np.zeros((2, 32)), np.zeros((0, 32)), np.full((1, 32), np.nan), np.ones(3), np.full(3, 1e300)):
        for panel in pair:
            panel.clear()
        nf.compare_formats(x, ["mxfp8", "nvfp4"]).plot(ax=pair)
    figure.canvas.draw()
    pyplot.close(figure)


def test_axes_of_the_user(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("Agg")
    found = nf.compare_formats(values(), ["mxfp8", "mxfp4"])
    figure, pair = pyplot.subplots(1, 2)
    assert found.plot(ax=pair) is figure and len(pair[1].lines) == 2
    other, one = pyplot.subplots()
    assert found.plot(tmp_path / "one.svg", ax=one) is other and "<svg" in (tmp_path / "one.svg").read_text()
    assert len(pyplot.get_fignums()) == 2, "the user's figures stay open"
    with pytest.raises(ArgumentError, match="one Matplotlib axes, or a pair"):
        found.plot(ax=3)
    pyplot.close("all")


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="at least one dtype"):
        nf.compare_formats(values(), [])
    with pytest.raises(DTypeError, match="quantized dtype"):
        nf.compare_formats(values(), ["float32"])
    with pytest.raises(DTypeError, match="floating array"):
        nf.compare_formats([1, 2, 3])
    with pytest.raises(ValueError, match="mlx"):
        nf.compare_formats(values(), convention="mlx")


def test_the_picture_of_the_documentation() -> None:
    from docs.make_compare_formats import PICTURE, activations

    assert PICTURE.exists() and activations(4, 200).shape == (4, 200)
