"""One look for all figures, and files whose bytes depend on nothing but what is drawn.

Methods differ in colour (palettes of Okabe and Ito and of Paul Tol, which the colour-blind can read), in line style and in
marker, and the colours in lightness, so that a grey print can be read too; a method looks the same in every figure. No
backend is chosen here: figures are plain `matplotlib.figure.Figure` objects, which need none, and a notebook shows the
file that was written.
"""

from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from PIL import Image

from ace.report.formatting import write_csv, write_text
from ace.report.labels import method

# variant -> (colour, line style, marker)
LINES = {
    "do_nothing": ("#000000", (0, (1, 2)), "X"),
    "reconnect": ("#5a5a5a", (0, (5, 2)), "p"),
    "greedy": ("#8c8c8c", (0, (7, 2, 1, 2)), "*"),
    "sac": ("#d55e00", "--", "s"),
    "ace": ("#0072b2", "-", "o"),
    "ace_no_actor": ("#56b4e9", "-.", "^"),
    "ace_no_critic": ("#009e73", ":", "D"),
    "dc_argmin": ("#cc79a7", "-", "v"),
    "llm_only": ("#e69f00", "--", "P"),
    "ace_literal": ("#5b3a8e", "-.", "<"),
    "expert_sac": ("#7a4a12", ":", ">"),
    "random_refine": ("#999933", (0, (3, 1, 1, 1)), "d"),
    "frequency_refine": ("#882255", (0, (4, 1)), "h"),
    "llm4teach": ("#44aa99", (0, (2, 1)), "8"),
    "camel": ("#ee8866", (0, (6, 1)), "s"),
    "also": ("#332288", (0, (8, 1, 1, 1)), "o"),
    "ace_elsewhere": ("#117733", (0, (5, 1, 1, 1)), "h"),
    # ablations
    "ace_random": ("#aa4499", "--", "P"),  # random shaping, every K
    "ace_query_high": ("#4477aa", "-", "v"),
    "ace_query_low": ("#ccaa22", "--", "P"),
    "ace_no_bad_case": ("#b8860b", ":", "X"),
    "ace_rounds_1": ("#cc6677", "-", "v"),
    "ace_rounds_3": ("#7f4fa3", "-.", "<"),
}
MORE_LINES = [("#cc6677", "-", "v"), ("#ccaa22", "--", "P"), ("#aa4499", "-.", "<"), ("#4477aa", ":", ">")]
"""For what is no method: measures, settings, variants without a line of their own."""

FIRST = ("sac", "ace", "expert_sac", "frequency_refine", "ace_no_actor", "ace_no_critic")
"""The methods of a panel where there are more than MOST_LINES."""
MOST_LINES = 6

# Without these, files carry a version, a date or random element names
METADATA = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def lines(variants):
    """variant -> (colour, line style, marker); those without a line of their own take turns in the order given."""
    known = {variant: LINES.get(method(variant)) for variant in variants}
    unknown = [variant for variant, look in known.items() if look is None]
    return known | {variant: MORE_LINES[i % len(MORE_LINES)] for i, variant in enumerate(unknown)}


def by_panel(variants):
    """The variants in lists of at most MOST_LINES: those of FIRST before the rest, within a list in the order given."""
    variants = list(variants)
    ordered = sorted(variants, key=lambda variant: variant not in FIRST)
    chunks = [ordered[i : i + MOST_LINES] for i in range(0, len(ordered), MOST_LINES)]
    return [sorted(chunk, key=variants.index) for chunk in chunks]


def legend_at_foot(figure, panel):
    """A panel's legend at the foot of the figure, where it covers nothing."""
    handles, names = panel.get_legend_handles_labels()
    if handles:
        columns = len(handles) if len(handles) <= 4 else 3
        figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)


def note_absent(figure, text):
    """At the foot of the figure; where the legend is there, as its heading, or one would cover the other."""
    look = {"fontsize": "x-small", "color": "#5a5a5a"}
    if not figure.legends:
        figure.supxlabel(text, **look)
        return
    for legend in figure.legends:
        legend.set_title(text)
        legend.get_title().set(**look, multialignment="center")


@contextmanager
def theme():
    """rcParams of all figures. Starts from matplotlib's defaults, since a reader's own matplotlibrc must not show."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(sns.axes_style("whitegrid"))
        mpl.rcParams.update(sns.plotting_context("paper", font_scale=1.1))
        mpl.rcParams.update(
            {
                "font.family": ["DejaVu Sans"],  # comes with matplotlib, so it is the same everywhere
                "grid.color": "#e3e3e3",
                "axes.edgecolor": "#888888",
                "savefig.dpi": 130,
            }
        )
        yield


def save(figure, path, formats=("png", "pdf")):
    """Write <path>.<format> for each format; call within `theme`. Returns the paths."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for each, kind in zip(paths, formats, strict=True):
        figure.savefig(each, format=kind, metadata=METADATA[kind], bbox_inches="tight", facecolor="white")
        if kind == "png":  # in 64 colours a quarter of the bytes, and looks the same
            with Image.open(each) as drawn:
                few = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            few.save(each, optimize=True)
    return paths


def write_figure(figure, data, path, title, note):
    """The picture (`save`), the CSV of what it shows, and <path>.md: title, picture and the note on it. Within `theme`."""
    path = Path(path)
    save(figure, path)
    write_csv(data, path.with_name(f"{path.name}.csv"))
    write_caption(path, title, note)


def write_caption(path, title, note):
    """<path>.md, which the report shows: title, the picture <path>.png, and the note on it."""
    path = Path(path)
    write_text(path.with_name(f"{path.name}.md"), f"# {title}\n\n![{title}]({path.name}.png)\n\n{note}\n")
