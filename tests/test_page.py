"""The report page: needs nothing but itself, shows what is there, repeats to the byte, and invents no number."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from conftest import ROOT

from ace.report import claims, page, show
from ace.report.runs import ReportError

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
UNITS = {"tables/environments": (100, 1e-3)}  # shares printed as percent, MW as GW
EMPTY = {"meta", "img", "br", "hr", "link", "input"}  # elements that are never closed


class Page(HTMLParser):
    """ids: all of them. loads: (tag, address) of what a browser fetches. links: where <a> leads.
    cells: id of the innermost part with one -> texts of its <td>. text: id -> all text in it, parts of it included."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.loads, self.links, self.tags, self.cells, self.text = [], [], [], set(), {}, {}
        self.open, self.cell = [], None
        self.feed(html)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.loads += [(tag, attrs[name]) for name in ("src", "srcset", "data", "poster") if name in attrs]
        if "href" in attrs:
            (self.links if tag == "a" else self.loads).append(attrs["href"])
        if tag not in EMPTY:
            self.open.append((tag, attrs.get("id")))
        if tag == "td":
            self.cell = []

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag
        if tag == "td":
            self.cells.setdefault(self.within()[-1], []).append("".join(self.cell))
            self.cell = None

    def handle_data(self, data):
        for name in self.within():
            self.text[name] = self.text.get(name, "") + data
        if self.cell is not None:
            self.cell.append(data)

    def within(self):
        return [name for _, name in self.open if name]


@pytest.fixture
def folder(tmp_path):
    """A copy of what the stage reads."""
    (tmp_path / "results").mkdir()
    for name in ("README.md", "dvc.yaml", "results/claims.csv"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("tables", "figures", "provenance"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    return tmp_path


def written(params, folder):
    made = page.write(params, folder)
    return made, Page((folder / "results/report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def committed():
    return Page((ROOT / "results/report.html").read_text(encoding="utf-8"))


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers(text):
    return [token.rstrip(",") for token in NUMBER.findall(text)]


def known(*paths):
    """All numbers in the cells of CSV files."""
    return {
        float(token.replace(",", ""))
        for path in paths
        for row in csv.reader(path.read_text(encoding="utf-8").splitlines())
        for cell in row
        for token in numbers(cell)
    }


def unknown(texts, values):
    """Numbers in texts that no value rounds to at the precision printed."""
    found = []
    for token in [token for text in texts for token in numbers(text)]:
        value, half = float(token.replace(",", "")), 0.5 * 10.0 ** -len(token.partition(".")[2])
        # six significant digits of a CSV may have been more when this was printed; whole numbers are whole in both
        if not any(abs(value - each) <= half + 5e-6 * abs(each) * (each % 1 > 0) for each in values):
            found.append(token)
    return found


def items_there():
    return [item for item in page.items(ROOT / "results") if list((ROOT / "results").glob(f"{item.place}.*"))]


def test_the_number_check_sees_what_is_wrong():
    values = {81.2909, 24920503.0, 0.65, -1.78, 2.0}
    assert numbers("C1 5 x 30, wcci2020 up to +145 %; 24,920,503 -1.78 [3.2e-4]") == [
        "5",
        "30",
        "+145",
        "24,920,503",
        "-1.78",
        "3.2e-4",
    ]
    assert unknown(["81.3 [81.29, 81]", "24,920,503", "0.7", "2.00 -1.8"], values) == []
    assert unknown(["81.2", "24,920,504", "0.66", "1.78"], values) == ["81.2", "24,920,504", "0.66", "1.78"]


@pytest.mark.parametrize(
    "item", [item for item in items_there() if item.place.startswith("tables")], ids=lambda item: item.place
)
def test_every_number_of_a_table_is_in_its_csv(committed, item):
    cells = committed.cells[item.anchor]
    assert len(cells) > 3 and any(numbers(cell) for cell in cells)
    values = known(ROOT / "results" / f"{item.place}.csv")
    values |= {value * factor for factor in UNITS.get(item.place, ()) for value in values}
    if "not run" in " ".join(cells):  # what was not run is named with its setting, which is in no results' file
        values |= known(ROOT / "params.yaml")
    assert unknown(cells, values) == []


def test_every_number_of_the_verdicts_is_in_claims_csv_in_readme_and_on_the_page(committed):
    values = known(ROOT / "results/claims.csv")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split(show.START)[1].split(show.END)[0]
    rows = [line for line in readme.splitlines() if re.match(r"\| C\d+ ", line)]
    assert len(rows) == 14 and len(committed.cells["verdicts"]) == 14 * 6
    assert unknown(rows, values) == []
    assert unknown(committed.cells["verdicts"], values) == []


def test_every_number_of_how_it_was_made_is_in_report_csv(committed):
    assert len(committed.cells["made"]) == len(page.COLUMNS) * len(items_there())
    assert unknown(committed.cells["made"], known(ROOT / "results/report.csv")) == []


# --- one page, the same page ------------------------------------------------------------------------------------------


def test_the_committed_page_is_that_of_the_committed_files(params, folder):
    page.write(params, folder)
    for name in ("report.html", "report.csv"):
        same = (folder / "results" / name).read_bytes() == (ROOT / "results" / name).read_bytes()
        assert same, f"results/{name} is old: run `dvc repro report`"


def test_the_page_loads_nothing(committed):
    assert committed.loads and {tag for tag, _ in committed.loads} == {"img"}
    assert [
        address for _, address in committed.loads if not re.match(r"data:image/(png|svg\+xml);base64,", address)
    ] == []
    assert committed.tags & {"script", "link", "iframe", "object", "embed", "base", "form"} == set()
    style = (ROOT / "ace/report/page.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "@import" not in style and "url(" not in style and "//" not in style


def test_every_link_leads_somewhere(committed):
    assert len(set(committed.ids)) == len(committed.ids)
    inside = {link[1:] for link in committed.links if link.startswith("#")}
    assert inside <= set(committed.ids) and {f"C{n}" for n in range(1, 15)} <= inside
    outside = [link for link in committed.links if not link.startswith(("#", "https://"))]
    assert [link for link in outside if not (ROOT / "results" / link).exists()] == []


def test_the_same_files_give_the_same_bytes(params, folder):
    page.write(params, folder)
    first = [(folder / "results" / name).read_bytes() for name in ("report.html", "report.csv")]
    (folder / "results/report.html").write_text("old")
    page.write(params, folder)
    assert [(folder / "results" / name).read_bytes() for name in ("report.html", "report.csv")] == first


# --- what is on it ----------------------------------------------------------------------------------------------------


def test_everything_that_is_there_is_shown_and_in_the_contents(committed):
    sections = {item.anchor for item in page.items(ROOT / "results") if item.anchor in committed.ids}
    assert sections == {item.anchor for item in items_there()} >= {"tables-main", "figures-learning_curves"}
    assert {f"#{anchor}" for anchor in sections} <= set(committed.links)
    assert sum(tag == "img" for tag, _ in committed.loads) == sum(name.startswith("figures-") for name in sections)


def test_the_verdict_table_is_readmes(committed):
    rows = show.readme_table(claims.read_written(ROOT / "results")).splitlines()[4:]
    cells = [cell.strip("` ") for row in rows for cell in row.strip("| ").split(" | ")]
    assert committed.cells["verdicts"] == cells


def test_what_holds_stands_above_the_verdicts(params, folder):
    _, seen = written(params, folder)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    words = re.findall(r"\w+", readme.split("## What holds\n")[1].split(show.START)[0])
    text = re.findall(r"\w+", seen.text["verdicts"])
    start = text.index(words[0])
    assert len(words) > 50 and text[start : start + len(words)] == words
    assert len(text) > start + len(words) + 14 * 6, "before the table"
    for verdict in claims.measure.VERDICTS:
        assert f'<dt class="{verdict.replace(" ", "-")}">{verdict}</dt>' in (folder / "results/report.html").read_text()


def test_what_holds_needs_the_claims_marker(params, folder):
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace(show.START, ""))
    with pytest.raises(ReportError, match=r"^README\.md has no `<!-- claims:start -->` in section `## What holds`, [^\n]*$"):
        page.write(params, folder)
    readme.write_text(readme.read_text().replace("## What holds", "## Findings"))
    with pytest.raises(ReportError, match=r"^README\.md has no section `## What holds`, which the report shows$"):
        page.write(params, folder)


def test_every_figure_says_what_it_shows():
    assert [item.place for item in page.ITEMS if item.place.startswith("figures") and not item.about] == []
    diagnosis = next(item for item in page.ITEMS if item.place == "figures/diagnosis_*")
    assert all(f"{panel}: " in diagnosis.about for panel in range(1, 6)) and "notebook" not in diagnosis.about
    titles = [item.title for item in page.ITEMS]
    assert len({title.partition(":")[0] for title in titles}) == len(titles), "one Table 1"


def test_an_item_of_each_environment():
    item = page.Item("figures/diagnosis_*", "Diagnosis", "why", folded=True)
    there = ["figures/diagnosis", "figures/diagnosis_a", "figures/diagnosis_b_c", "tables/diagnosis_d", "figures/main"]
    assert item.among(there) == [
        page.Item("figures/diagnosis_a", "Diagnosis, a", "why", True),
        page.Item("figures/diagnosis_b_c", "Diagnosis, b_c", "why", True),
    ]
    assert item.among(["figures/main"]) == [item], "it is named as missing"
    plain = page.Item("figures/diagnosis", "Diagnosis")
    assert plain.among(there) == [plain]


def test_the_stage_of_each_environment_makes_its_own(tmp_path):
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n"
        "  diagnosis:\n    matrix: {env: '${grid.environments}'}\n    cmd: run notebooks/04.ipynb -p environment ${item.env}\n"
        "    outs: ['results/diagnosis/${item.env}.csv', {'results/figures/diagnosis_${item.env}.png': {cache: false}}]\n"
        "  train:\n    matrix: {env: [a], variant: [x]}\n    cmd: run notebooks/03.ipynb\n"
        "    outs: ['results/${item.env}/${item.variant}']\n"
        "  claims:\n    cmd: run notebooks/90.ipynb\n    metrics: [results/claims.csv]\n"
    )
    made = page.makers(tmp_path / "dvc.yaml", ["a", "b"])
    assert made == {
        "results/diagnosis/a.csv": ("diagnosis@a", "notebooks/04.ipynb"),
        "results/diagnosis/b.csv": ("diagnosis@b", "notebooks/04.ipynb"),
        "results/figures/diagnosis_a.png": ("diagnosis@a", "notebooks/04.ipynb"),
        "results/figures/diagnosis_b.png": ("diagnosis@b", "notebooks/04.ipynb"),
        "results/${item.env}/${item.variant}": ("train", "notebooks/03.ipynb"),
        "results/claims.csv": ("claims", "notebooks/90.ipynb"),
    }


def test_a_folded_table_is_told_on_paper(params, folder):
    rows = "".join(f"| a | {n}.5 |\n" for n in range(3))
    path = folder / "results/tables/language_model"
    path.with_suffix(".md").write_text(f"# x\n\n| Grid | Value |\n| --- | --- |\n{rows}\nA note.\n")
    _, seen = written(params, folder)
    text = seen.text["tables-language_model"]
    assert "3 rows, not printed: results/tables/language_model.csv" in text and "A note." in text
    assert seen.cells["tables-language_model"] == ["a", "0.5", "a", "1.5", "a", "2.5"]
    html = (folder / "results/report.html").read_text()
    assert "<details><summary>3 rows</summary><div class=\"scroll by-second\"" in html
    assert "rows, not printed: results/tables/paired.csv" in seen.text["tables-paired"]
    style = html.split("@media print")[1]
    assert "details { display: none; }" in style and ".unprinted { display: block; }" in style
    assert "not printed" not in seen.text["tables-main"]


def test_deviations_and_issues_are_readmes(committed):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, heading, mark in (
        ("deviations", "Deviations from the paper", r"^\d+\. "),
        ("issues", "Known issues", "^- "),
    ):
        text = readme.split(f"## {heading}\n")[1].split("\n## ")[0]
        words = re.findall(r"\w+", re.sub(r"^\d+\. |\]\([^)]*\)", "", text, flags=re.MULTILINE))
        assert len(re.findall(mark, text, re.MULTILINE)) > 5
        assert re.findall(r"\w+", committed.text[name])[len(heading.split()) :] == words


def test_what_is_missing_is_named_in_a_line_and_has_no_part(params, folder):
    for path in [*folder.glob("results/tables/language_model.*"), *folder.glob("results/figures/learning_curves.*")]:
        path.unlink()
    made, seen = written(params, folder)
    assert "tables-language_model" not in seen.ids and "figures-learning_curves" not in seen.ids
    line = "Not made at this scale: The language model by itself (results/tables/language_model)"
    assert line in seen.text["tables"] and "results/figures/learning_curves)" in seen.text["figures"]
    assert "Learning curves" not in set(made["item"])


def test_what_comes_later_is_shown_as_soon_as_it_is_there(params, folder):
    results = folder / "results"
    rows = "".join(f"wcci2020,ace,{n}.5\n" for n in range(41))
    (results / "tables/ablations.csv").write_text(f"env,variant,value\n{rows}")
    (results / "tables/ablations.md").write_text(
        "# Ablations, scale x\n\n## Part\n\n| a | b |\n| --- | --- |\n| ace | 0.5 |\n"
    )
    (results / "tables/odd_one.csv").write_text("what,value\n<script>alert(1)</script> | x,1\n")
    (results / "tables/paired.csv").write_text(f"env,variant,value\n{rows}")
    (results / "figures/shaping.png").write_bytes(b"\x89PNG")
    (results / "figures/shaping.svg").write_text("<svg/>")
    made, seen = written(params, folder)
    assert seen.cells["tables-ablations"] == ["ace", "0.5"] and "scale x" not in seen.text["tables-ablations"]
    assert seen.cells["tables-odd_one"] == ["<script>alert(1)</script> | x", "1"] and "script" not in seen.tags
    assert [name for name in seen.ids if name.startswith("tables-")][-1] == "tables-odd_one", "not listed: last"
    assert "41 rows" in seen.text["tables-paired"] and "details" in seen.tags
    assert ("img", "data:image/svg+xml;base64,PHN2Zy8+") in seen.loads
    assert "Odd one" in set(made["item"])


def test_runs_and_seconds_are_those_of_the_provenance(params, folder):
    made = page.write(params, folder).set_index("file")
    walls = [
        json.loads(path.read_text())["wall_s"]
        for variant in ("ace", "ace_no_actor", "ace_no_critic", "sac")
        for env in params.grid.environments
        for path in (folder / "results/provenance" / env / variant).glob("*.json")
    ]
    row = made.loc["results/tables/ablation_roles.csv"]
    assert (row["runs"], row["seconds"]) == (len(walls), round(sum(wall["train"] + wall["evaluate"] for wall in walls)))
    assert (row["stage"], row["notebook"]) == ("table_roles", "notebooks/11_table_roles.ipynb")


def test_every_item_is_made_by_a_stage_with_a_notebook(params, folder):
    made = page.write(params, folder)
    assert list(made.loc[made["stage"] == "", "file"]) == []
    assert all((ROOT / notebook).is_file() for notebook in made["notebook"])


def test_what_the_page_can_not_do_without_is_one_line(params, folder):
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("## Known issues", "## Issues"))
    with pytest.raises(ReportError, match=r"^README\.md has no section `## Known issues`, which the report shows$"):
        page.write(params, folder)
    (folder / "results/claims.csv").unlink()
    with pytest.raises(ReportError, match=r"no results/claims\.csv"):
        page.write(params, folder)
