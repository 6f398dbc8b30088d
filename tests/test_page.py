"""The report pages: they need nothing but themselves, show what is there, repeat to the byte, and change no number."""

import csv
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from conftest import ROOT

from ace import config
from ace.report import page
from ace.report.claims import WRITTEN
from ace.report.labels import GRIDS, LABELS
from ace.report.runs import ReportError
from ace.report.style import write_caption

PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8ffff3f"
                    "0005fe02fea1a2a1d50000000049454e44ae426082")  # fmt: skip
CLAIMS = "id,claim,paper_value,measured,ci_low,ci_high,n,criterion,verdict,evidence,source,scale,"
CLAIMS += "detectable,p,p_holm,verdict_before\n"
CLAIMS += "C2,Survival of ACE,77 % against 39.5 %,27.1,17.3,35.4,2 env x 5 seeds,larger,partly,runs,Table 1,quick,13,0.01,0.02,\n"


class Page(HTMLParser):
    """ids, headings (level, text), loads: (tag, address) of what a browser fetches, links: where <a> leads, text of all cells."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.loads, self.links, self.tags, self.cells, self.headings, self.within = (
            [],
            [],
            [],
            [],
            [],
            [],
            None,
        )
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.loads += [(tag, attrs[name]) for name in ("src", "srcset", "data", "poster") if name in attrs]
        if "href" in attrs:
            (self.links if tag == "a" else self.loads).append(attrs["href"])
        if tag in ("td", "th", "h1", "h2", "h3", "h4"):
            self.within = (tag, [])

    def handle_endtag(self, tag):
        if self.within and tag == self.within[0]:
            text = "".join(self.within[1])
            (self.cells if tag in ("td", "th") else self.headings).append(text if tag in ("td", "th") else (tag, text))
            self.within = None

    def handle_data(self, data):
        if self.within:
            self.within[1].append(data)


@pytest.fixture
def results(tmp_path):
    """A table, a figure and the claims of a paper, and one study."""
    folder = tmp_path / "results"
    for name, text in {
        "paper/10_table_main/main.md": "# Main\n\n| Grid | Method |\n| --- | --- |\n| a | x \\| 5.25 [1, 9] |\n\n"
        "see [d](../../../docs/a.md)\n",
        "paper/30_open/long.md": "# Long\n\n| Id | Verdict |\n| --- | --- |\n" + "| 1 | not tested |\n" * 7,
        f"{WRITTEN}/claims.csv": CLAIMS,
        f"{WRITTEN}/claims.md": "# The claims\n\n## C2\n\nCriterion.\n",
        "studies/show/foresight/foresight.md": "# Foresight\n\nNothing.\n",
        "studies/foresight/a.csv": "x\n1\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("paper/10_table_main/main_figure", "paper/20_figure/curves"):
        write_caption(folder / name, f"Picture of {name[-6:]}", "A note.")
        (folder / f"{name}.png").write_bytes(PNG)
    return folder


def written(results, **options):
    params = SimpleNamespace(scale="quick", grid=SimpleNamespace(environments=["a", "b"]))
    shown = page.write_pages(params, results, **options)
    return shown, {name: Page((results / name).read_text(encoding="utf-8")) for name in shown}


def test_everything_that_is_there_is_shown_claims_last_and_the_main_figure_first(results):
    shown, pages = written(results)
    assert [title for title, _ in shown[page.PAPER]] == ["Main", "Picture of curves", "Long", "The claims"]
    assert [title for title, _ in shown[page.STUDIES]] == ["Foresight"]
    texts = [text for _, text in pages[page.PAPER].headings]
    assert texts.index("Picture of figure") < texts.index("Contents") < texts.index("Main") < texts.index("The claims")
    assert [tag for tag, _ in pages[page.PAPER].headings].count("h1") == 1
    assert ("h3", "C2") in pages[page.PAPER].headings, "a part of an item is below it"
    assert "x | 5.25 [1, 9]" in pages[page.PAPER].cells and "27.1 [17.3, 35.4] pts above SAC" in pages[page.PAPER].cells


def test_a_page_loads_nothing_and_holds_its_pictures(results):
    _, pages = written(results)
    for seen in pages.values():
        assert "script" not in seen.tags and "iframe" not in seen.tags
        assert all(str(address).startswith("data:") for _, address in seen.loads if isinstance(address, str))
    assert sum(tag == "img" for tag, _ in pages[page.PAPER].loads) == 2
    html = (results / page.PAPER).read_text()
    assert not re.search(r"url\((?!['\"]?(data:|#))", html) and "@import" not in html
    assert html.count("<main>") == html.count("</main></body>\n</html>") == 1 and len(html) < 20_000, "no style sheet but its own"
    assert html.count("<section>") == html.count("</section>") > 5 and "prompt" not in html, "a cell is its text alone"


def test_links_lead_to_what_is_there(results):
    _, pages = written(results)
    for name, seen in pages.items():
        inside = [link.removeprefix("#") for link in seen.links if link.startswith("#")]
        assert inside and set(inside) <= set(seen.ids), name
        for link in seen.links:
            assert link.startswith("#") or link in ("../docs/a.md", "../docs/method.md", "../docs/guide.md", *pages), (
                link
            )


def test_the_same_files_give_the_same_bytes_and_no_place_of_the_machine(results):
    written(results)
    first = {name: (results / name).read_bytes() for name in (page.PAPER, page.STUDIES)}
    written(results)
    assert first == {name: (results / name).read_bytes() for name in first}
    assert all(str(results).encode() not in content for content in first.values())


def test_a_long_table_is_folded_and_a_verdict_has_its_colour(results):
    _, pages = written(results, folded_rows=6)
    assert pages[page.PAPER].tags.count("details") == 1
    assert pages[page.PAPER].cells.count("not tested") == 7
    html = (results / page.PAPER).read_text()
    assert (
        html.count('<span class="not-tested">not tested</span>') == 7 and '<span class="partly">partly</span>' in html
    )
    assert "<td>" in re.search(r"<details>.*?</details>", html, flags=re.DOTALL)[0]
    _, pages = written(results, folded_rows=7)
    assert "details" not in pages[page.PAPER].tags


def test_without_studies_or_figures_the_page_is_made_and_without_claims_it_is_refused(results):
    for path in [*results.glob("studies/show/**/*.md"), *results.glob("paper/*0_*/*.md")]:
        if str(WRITTEN) not in path.as_posix():
            path.unlink()
    shown, _ = written(results)
    assert [title for title, _ in shown[page.PAPER]] == ["The claims"] and shown[page.STUDIES] == []
    (results / WRITTEN / "claims.csv").unlink()
    with pytest.raises(ReportError, match=r"no results/.*claims\.csv"):
        written(results)


def test_a_picture_that_is_gone_is_named(results):
    (results / "paper/20_figure/curves.png").unlink()
    with pytest.raises(ReportError, match=r"no curves\.png in 20_figure"):
        written(results)


@pytest.mark.parametrize("name", [page.PAPER, page.STUDIES])
def test_the_committed_pages_are_those_of_the_committed_files(name, tmp_path):
    committed = (ROOT / "results" / name).read_bytes()
    assert len(committed) < 2.5e6
    for folder in ("paper", "studies"):
        (tmp_path / folder).symlink_to(ROOT / "results" / folder)
    page.write_pages(config.load(ROOT / "params.yaml"), tmp_path)
    assert (tmp_path / name).read_bytes() == committed


# --- numbers of the studies' tables ------------------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
TABLES = sorted(
    path for path in (ROOT / "results/studies/show").glob("**/*.md") if not path.with_suffix(".png").is_file()
)


def numbers(text):
    return [token.rstrip(",") for token in NUMBER.findall(text)]


def unknown(texts, values):
    """Numbers in texts that no value rounds to at the precision printed."""
    found = []
    for token in [token for text in texts for token in numbers(text)]:
        value, half = float(token.replace(",", "")), 0.5 * 10.0 ** -len(token.partition(".")[2])
        # six significant digits of a CSV may have been more when this was printed; whole numbers are whole in both
        if not any(abs(value - each) <= half + 5e-6 * abs(each) * (each % 1 > 0) for each in values):
            found.append(token)
    return found


def test_the_number_check_sees_what_is_wrong():
    values = {81.2909, 24920503.0, 0.65, -1.78, 2.0}
    assert unknown(["81.3 [81.29, 81]", "24,920,503", "0.7", "2.00 -1.8"], values) == []
    assert unknown(["81.2", "24,920,504", "0.66", "1.78"], values) == ["81.2", "24,920,504", "0.66", "1.78"]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_number_of_a_table_is_in_its_csv(path):
    rows = csv.reader(path.with_suffix(".csv").read_text(encoding="utf-8").splitlines())
    values = {float(token.replace(",", "")) for row in rows for cell in row for token in numbers(cell)}
    longest_first = sorted([*GRIDS.values(), *LABELS.values()], key=len, reverse=True)
    names = "|".join(map(re.escape, longest_first))  # they hold numbers of their own
    text = re.sub(names, "a name", path.read_text(encoding="utf-8")).splitlines()
    cells = [cell for line in text if line.startswith("|") for cell in line.strip("|").split("|") if "95 %" not in cell]
    assert len(cells) > 3 and any(numbers(cell) for cell in cells)
    assert unknown(cells, values) == []
