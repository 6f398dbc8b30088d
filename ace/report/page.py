"""The report: what the pipeline wrote, on two pages that need nothing else, no network and no other file.

`report.html` answers the paper: verdicts, tables, figures. `studies.html` holds what goes beyond it. A page is a notebook
of Markdown cells that `jupyter nbconvert` exports: one cell for each Markdown file that a table or figure left in its
folder, with its picture inside. Nothing is listed here: a folder that is there is shown. The same files give the same
bytes: no date and no version is on the page.
"""

import base64
import io
import json
import posixpath
import re
from pathlib import Path

from nbconvert import HTMLExporter

from ace.report.claims import read_written
from ace.report.claims_text import readme_table
from ace.report.formatting import write_text
from ace.report.labels import grid_label
from ace.report.notes import note
from ace.report.runs import ReportError
from ace.report.verdicts import VERDICTS

PAPER, STUDIES = "report.html", "studies.html"
LEADING = ("main", "environments", "open_questions")
"""Files that come before the others of their folder."""
CLAIMS, HEADLINE = "90_claims", "10_table_main/main_figure.md"
# nbconvert's own pages carry JupyterLab's style sheet, a quarter of a megabyte, and scripts from the network.
TEMPLATE = "{%- extends 'basic/index.html.j2' -%}" + "".join(
    f"{{%- block {block} -%}}{text}{{%- endblock -%}}"
    for block, text in {
        "header": (
            '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1.0">\n'
            "<title>{{ resources.metadata.name }}</title>\n"
            f"<style>\n{(Path(__file__).parent / 'page.css').read_text(encoding='utf-8')}</style></head>\n<body><main>\n"
        ),
        "markdowncell scoped": "<section>\n{{ cell.source | markdown2html }}\n</section>\n",
        "footer": "</main></body>\n</html>\n",
    }.items()
)


def write_pages(params, results, folded_rows=40):
    """Writes report.html and studies.html under results. Returns {page: [(title, path of the Markdown file)]}.

    folded_rows: a table with more rows is shown folded
    Raises ReportError where claims.csv is missing.
    """
    results = Path(results)
    claims = read_written(results)
    paper = items(results / "paper")
    criteria = [item for item in paper if item[1].parent.name == CLAIMS]
    shown = [item for item in paper if item not in criteria] + criteria
    answer = f"{_table(readme_table(claims))}\n\n{note('page.verdicts')}"
    headline = results / "paper" / HEADLINE
    if headline.is_file():
        answer += f"\n\n{_cell(headline, results, folded_rows, level=3)}"
        shown = [item for item in shown if item[1] != headline]
    studies = items(results / "studies" / "show") + items(results / "studies" / "one_run")
    grids = ", ".join(map(grid_label, params.grid.environments))
    first = note("page", scale=params.scale, grids=grids)
    write_page(results / PAPER, "ACE: which of the paper's claims hold", [first, f"## The answer\n\n{answer}"],
               shown, results, folded_rows)  # fmt: skip
    second = note("page.studies", scale=params.scale, grids=grids)
    write_page(results / STUDIES, "ACE: studies beyond the paper", [second], studies, results, folded_rows)
    return {PAPER: shown, STUDIES: studies}


def items(folder):
    """[(title, path)] of the Markdown files below a folder, by their paths, LEADING first; the title is their first heading."""
    found = []
    for path in sorted(Path(folder).glob("**/*.md"), key=lambda path: (path.parent, path.stem not in LEADING, path.stem)):
        head = re.match(r"# +(.+)", path.read_text(encoding="utf-8"))
        found.append((head[1].strip() if head else path.stem.replace("_", " ").capitalize(), path))
    return found


def write_page(path, title, opening, shown, results, folded_rows):
    """One page: its title, the opening cells, contents, and a cell for each of shown, [(title, Markdown file)]."""
    contents = "\n".join(f"- [{name}](#{_anchor(each, results)})" for name, each in shown)
    texts = [f"# {title}\n\n{opening[0]}", *opening[1:], f"## Contents\n\n{contents}"]
    texts += [_cell(each, results, folded_rows) for _, each in shown]
    cells = [
        {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text}
        for number, text in enumerate(texts)
    ]
    notebook = {"cells": cells, "metadata": {"title": title}, "nbformat": 4, "nbformat_minor": 5}
    exporter = HTMLExporter(raw_template=TEMPLATE, exclude_anchor_links=True)
    html, _ = exporter.from_file(io.StringIO(json.dumps(notebook)), {"metadata": {"name": title}})
    write_text(Path(path), html)


def _cell(path, results, folded_rows, level=2):
    """A Markdown file as part of a page: headings below the page's own, links as seen from results/, long tables folded."""
    folder = path.parent.relative_to(results).as_posix()
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^#(?=#* )", "#" * level, text, flags=re.M)
    text = re.sub(r"^!\[(.*?)\]\((.*?)\)$", lambda m: _picture(m[1], path.parent / m[2]), text, flags=re.M)
    text = re.sub(
        r"\]\((?![a-z]+:|[#/])([^)]+)\)", lambda m: f"]({posixpath.normpath(posixpath.join(folder, m[1]))})", text
    )
    text = re.sub(r"(?:^\|.*\n)+", lambda match: _folded(match[0], folded_rows), text, flags=re.M)
    source = f"<small>Files: `results/{folder}/`, written by `{_notebook(folder)}`.</small>"
    return f'<a id="{_anchor(path, results)}"></a>\n\n{_table(text)}\n{source}'


def _picture(title, path):
    """Not by nbconvert's embed_images, which closes every tag in Markdown at once."""
    if not path.is_file():
        raise ReportError(f"no {path.name} in {path.parent.name}, which the report shows: make that figure again")
    return f'<img alt="{title}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'


def _notebook(folder):
    """paper/10_table_main -> notebooks/10_table_main.ipynb; studies/show/foresight -> notebooks/studies/foresight_show.ipynb;
    studies/one_run/also -> notebooks/studies/also_run.ipynb."""
    _, kind, name = f"/{folder}".rsplit("/", 2)
    ending = {"show": "_show", "one_run": "_run"}.get(kind)
    return f"notebooks/studies/{name}{ending}.ipynb" if ending else f"notebooks/{name}.ipynb"


def _anchor(path, results):
    return path.relative_to(results).with_suffix("").as_posix().replace("/", "-")


def _folded(table, most):
    rows = table.count("\n") - 2
    return f"<details><summary>{rows} rows</summary>\n\n{table}\n</details>\n" if rows > most else table


def _table(text):
    """Verdicts in a table's cells get their class."""
    kinds = "|".join(sorted(VERDICTS, key=len, reverse=True))
    return re.sub(rf"(?<=\| )({kinds})(?= \|)", lambda m: f'<span class="{m[1].replace(" ", "-")}">{m[1]}</span>', text)
