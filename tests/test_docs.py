"""README and docs/ keep their sizes, name only what exists, and quote only numbers that the tables hold."""

import ast
import re

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, parsed

RESULTS = ROOT / "results"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS, ROOT / "benchmarks" / "README.md"]
KILO = 1024
NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?"
QUOTED = re.compile(rf"({NUMBER})\**(?: %)? \[({NUMBER}), ({NUMBER})\]")  # value [low, high]
PLACES = ("ace/", "benchmarks/", "docs/", "notebooks/", "profiles/", "results/", "tests/")
COLUMNS = {"WCCI 2020": "wcci2020", "NeurIPS 2020": "neurips2020", "WCCI 2022": "wcci2022"}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def prose(text):
    """The lines outside of tables and of blocks of code."""
    blocks = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line for line in blocks.splitlines() if not line.startswith("|")]


def tables(text):
    """Each Markdown table as (head, rows), lists of cells."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        yield head, rows


def code(text):
    """What stands in backticks on one line."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.encode()) <= 10 * KILO


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_short_and_their_lines_fit_a_screen(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) <= (8 if page.name == "results.md" else 12) * KILO
    assert [line for line in prose(text) if len(line) > 160] == []


@pytest.mark.parametrize("name", ["deviations", "known_issues"])
def test_items_are_numbered_through_and_at_most_five_lines_long(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    items = re.findall(r"^(\d+)\. (?:.*\n)(?:^ +.*\n)*", text, flags=re.MULTILINE)
    assert [int(number) for number in items] == list(range(1, len(items) + 1))
    for item in re.findall(r"^\d+\. .*\n(?:^ +.*\n)*", text, flags=re.MULTILINE):
        assert item.count("\n") <= 5, item


# --- what is named exists -----------------------------------------------------------------------------------------------


def anchors(text):
    """GitHub's anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_what_is_there(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        place, _, anchor = target.partition("#")
        found = page.parent / place if place else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_in_backticks_exist(page):
    for place in code(page.read_text(encoding="utf-8")):
        if place.startswith(PLACES) and not re.search(r"[<\s]", place):
            assert any(ROOT.glob(place)) if "*" in place else (ROOT / place).exists(), place


def defined(path):
    """Names of a module's top level, and Class.member of what its classes define."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            members = node.body if isinstance(node, ast.ClassDef) else ()
            names |= {f"{node.name}.{member.name}" for member in members if isinstance(member, ast.FunctionDef)}
    return names


def test_defined_tells_methods_functions_and_constants(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("K = 1\ndef f():\n    def inner(): ...\nclass A:\n    def g(self): ...\n")
    assert defined(module) == {"K", "f", "A", "A.g"}


def test_every_name_in_method_is_defined_in_its_file():
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    checked = 0
    for head, rows in tables(text):
        if head[-2:] != ["File", "Names"]:
            continue
        for row in rows:
            names = set().union(*(defined(ROOT / path) for path in code(row[-2]) if path.endswith(".py")))
            assert set(code(row[-1])) <= names, row
            checked += len(code(row[-1]))
    assert checked >= 50


def test_every_symbol_in_method_has_its_value_in_the_parameters():
    base = parsed("params.yaml")["base"]
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    (rows,) = (rows for head, rows in tables(text) if "Key" in head)
    for _, keys, values in rows:
        for key, value in zip(code(keys), values.split(", "), strict=True):
            section, name = key.split(".")
            assert float(base[section][name]) == float(value), key


# --- numbers ------------------------------------------------------------------------------------------------------------


def intervals(folder):
    """Of every interval in a CSV file or in those below a folder, in columns or in a text: (low, high, numbers of its row)."""
    found = []
    for path in sorted(folder.rglob("*.csv")) or [folder]:
        table = pd.read_csv(path)
        numbers = table.select_dtypes("number")
        ends = [c for c in numbers if c.endswith("low") and f"{c.removesuffix('low')}high" in numbers]
        for low in ends:
            high = f"{low.removesuffix('low')}high"
            rows = numbers[numbers[low].notna()]
            found += [(row[low], row[high], row.to_numpy(float)) for _, row in rows.iterrows()]
        for text in table.select_dtypes(exclude="number").to_numpy().ravel():
            read = [[float(number.replace(",", "")) for number in quoted] for quoted in QUOTED.findall(str(text))]
            found += [(low, high, np.array([value])) for value, low, high in read]
    return found


def is_held(quoted, held):
    """Whether value, low, high, as written, are some interval of the tables: rounded, in percent, or of the difference
    taken the other way round."""
    value, low, high = (float(number.replace(",", "")) for number in quoted)
    half = [0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9 for number in quoted]
    for a, b, row in held:
        for scale in (1, 100):
            for sign, (first, last) in ((1, (a, b)), (-1, (b, a))):
                fits = abs(sign * scale * first - low) <= half[1] and abs(sign * scale * last - high) <= half[2]
                if fits and (np.abs(sign * scale * row - value) <= half[0]).any():
                    return True
    return False


def test_is_held_accepts_rounding_and_sign_and_nothing_else():
    held = [(-0.0354, 0.0013, np.array([-0.0189, -0.0354, 0.0013])), (7.451, 58.74, np.array([33.1, 7.451, 58.74]))]
    assert is_held(("33.1", "7.5", "58.7"), held) and is_held(("-33", "-59", "-7"), held)
    assert is_held(("-1.9", "-3.5", "0.1"), held)
    assert not is_held(("33.1", "7.4", "58.7"), held)
    assert not is_held(("33.2", "7.5", "58.7"), held)


@pytest.fixture(scope="module")
def held():
    return [*intervals(RESULTS / "paper"), *intervals(RESULTS / "studies"), *intervals(RESULTS / "learner_pilot.csv")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_quoted_interval_is_in_a_table(page, held):
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    assert [quoted for quoted in QUOTED.findall(text) if not is_held(quoted, held)] == []


def test_survival_in_results_is_that_of_the_main_table():
    """Each cell: survival, and ACE minus the method, bold where the interval excludes 0."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    ((head, rows),) = tables(text.split("<!-- check: survival -->\n")[1].split("<!-- check: end -->")[0])
    main, paired = (pd.read_csv(RESULTS / "paper" / "10_table_main" / f"{name}.csv") for name in ("main", "paired"))
    means = main[main["metric"] == "survival"].set_index(["env", "variant"])["mean"]
    pairs = paired[paired["metric"] == "survival"].set_index(["env", "a", "b"])[["difference", "ci_low", "ci_high"]]
    assert {code(row[1])[0] for row in rows} == set(means.index.get_level_values("variant"))
    for row in rows:
        (variant,) = code(row[1])
        for env, cell in zip((COLUMNS[name] for name in head[2:]), row[2:], strict=True):
            survival, _, lead = cell.partition("; ")
            assert survival == f"{means[env, variant]:.1f}", (env, variant)
            if variant == "ace":
                assert not lead
                continue
            difference, low, high = pairs.loc[(env, variant, "ace")]
            assert is_held(QUOTED.findall(lead)[0], [(low, high, np.array([difference]))]), (env, variant)
            assert lead.startswith("**") == (low > 0 or high < 0), (env, variant)
            assert float(QUOTED.findall(lead)[0][0]) * difference <= 0, (env, variant)  # ACE minus it, not it minus ACE


def test_the_factors_in_use_are_as_hard_as_the_table_of_environments_says():
    """Weeks or factors that change want `python -m benchmarks.difficulty` again."""
    declared = parsed("params.yaml")
    tried = pd.read_csv(RESULTS / "difficulty.csv").set_index(["env", "thermal_factor", "opponent"])
    table = pd.read_csv(RESULTS / "paper" / "04_environments" / "environments.csv").set_index(["env", "split"])
    for env in declared["grid"]["environments"]:
        spec = declared["environments"][env]
        for name in ("weeks", "reconnect", "greedy", "easy_share", "hopeless_share"):
            found = tried.loc[(env, spec["thermal_factor"], spec["opponent"]), name]
            assert found == pytest.approx(table.loc[(env, "train"), name], abs=0.01), (env, name)
