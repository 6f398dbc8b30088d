"""The report: everything that the stages wrote, on one page that needs nothing else: no network, no other file.

Reads what lies under results/, how it was made from dvc.yaml, and README's account of deviations and known issues, so
that nothing is typed twice. The same files give the same bytes: no commit, no date, no version is on the page. What is
listed here and was not made (a smaller scale, a stage of later) is named in a line; a table or figure that is there and
not listed is shown after the others, under its file name.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2
import mistune
import pandas as pd
import yaml

from ace.report.claims import read_written
from ace.report.measure import VERDICTS
from ace.report.runs import ReportError, seeds_of
from ace.report.show import START, ours, readme_table, summary_line
from ace.report.typeset import markdown, write_csv

PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}  # in the order in which they are preferred
COLUMNS = ["item", "file", "stage", "notebook", "runs", "seconds", "md5"]
NUMBER = re.compile(r"[-+]?\d[-+\d.,±×x%\[\] ]*")  # with its interval
GROUPS = re.compile(r"<th>(Grid|env|Group|Question)</th>\n<th>")  # a first column that does not name the row
SHORT = 28  # characters of a cell that is kept on one line
TEMPLATE = "page.html"
HOLDS = "What holds"  # README's section with the claims table


@dataclass(frozen=True)
class Item:
    """A table or figure. place: its files below results/, without their endings, in which a final `*` stands for any
    environment. about: what it shows. folded: whether its table is, even in Markdown and with few rows."""

    place: str
    title: str
    about: str = ""
    folded: bool = False

    @property
    def anchor(self):
        return self.place.replace("/", "-")

    def among(self, there):
        """Itself, or one for each environment of which there is one. there: places that have files."""
        start = self.place.removesuffix("*")
        named = [place for place in there if self.place.endswith("*") and place.startswith(start)]
        return [replace(self, place=place, title=f"{self.title}, {place.removeprefix(start)}") for place in named] or [self]


ITEMS = (
    Item("tables/main", "Table 1: main comparison"),
    Item("tables/official_score", "Beside Table 1: the official L2RPN score"),
    Item("tables/ablation_roles", "Table 2: roles of the language model"),
    Item("tables/ablations", "Table 3: ACE taken apart"),
    Item("tables/cost", "Table 4: what it costs"),
    Item(
        "tables/language_model",
        "The language model by itself",
        "Share of held-out states that a proposal improves, of g_LLM's judgements with the right sign, and what LoRA adds "
        "under a shift of the grid; beside the language model stand a lookup table of frequent good actions, a classifier "
        "and chance.",
        folded=True,
    ),
    Item("tables/proposers", "Proposers alone, and the policies that learnt from them"),
    Item("tables/environments", "Environments and their action catalogues"),
    Item("tables/outages", "Trained policies with a line out"),
    Item("tables/foresight", "Trained policies with foresight, a declared extension"),
    Item("tables/open_questions", "Open questions"),
    Item(
        "tables/paired",
        "Paired differences",
        "Every method of the main comparison (a) minus each reference (b), on identical test episodes.",
    ),
    Item(
        "figures/learning_curves",
        "Learning curves",
        "Survival on validation scenarios: mean of the seeds, the band from the lowest to the highest. Methods that "
        "learn nothing are shown by their test episodes.",
    ),
    Item(
        "figures/main",
        "Main comparison, drawn",
        "Interquartile mean over seeds and test episodes with its 95 % interval.",
    ),
    Item(
        "figures/proposers",
        "What there is to learn, and what was learnt",
        "Survival on validation scenarios. Orange: a proposer decides alone, with its tries simulated first where not said "
        "otherwise. Blue, in the same row: the policy that learnt from it and acts without a simulator; in the first row "
        "plain SAC.",
    ),
    Item(
        "figures/foresight",
        "What policies have to choose from",
        "Survival on validation scenarios by the number of a policy's most probable actions that are compared by a DC model "
        "of the grid; ring: the number that was chosen and played on the test.",
    ),
    Item(
        "figures/diagnosis_*",
        "Diagnosis: why the learner learns what it does",
        "On training and validation scenarios only (on WCCI 2022 they share the test's "
        "day). 1: can the policy network hold what look-ahead knows? It imitates the best "
        "action, or all rated actions, of the language model's set, after more and more labels; dotted: choices about as good as "
        "the best one. 2: do the critics rank the set's actions as the simulator does, and by how much do they overrate the most "
        "frequent refined action? 3: what one step of each trained policy loses against the set's best action, in the states "
        "that each visitor meets; lower is better. 4: survival after short runs by β, the share of refined samples in a "
        "batch; at β = 0 none is used. 5: over how many actions the policy spreads in training and, in the last panel, its "
        "probability of acting at the hub, the substation that has most of the actions.",
    ),
    Item(
        "figures/reasoning",
        "Fig. 4: without bad-case and without multi-round reasoning",
        "ACE as it is, without the bad action and its outcome in the prompt, and with fewer rounds of proposals for each bad "
        "case: survival on test episodes, mean over seeds and episodes with its 95 % interval.",
    ),
    Item(
        "figures/shaping",
        "The size K of reward shaping",
        "K is how far g_LLM moves the reward of a key decision. How much Q varies within a batch late in training, how many "
        "decisions a run takes to 90 % of its own best validation survival, and survival in the test; the control moves the "
        "rewards of random decisions, the level line is ACE without shaping.",
    ),
    Item(
        "figures/generalisation",
        "Trained on half of the scenarios",
        "Survival on unseen test scenarios after training on all training scenarios or on half of them, with f_LLM asked often "
        "or seldom, and of plain SAC; mean over seeds and episodes with its 95 % interval.",
    ),
    Item(
        "figures/open_questions",
        "Open questions, drawn",
        "Each contrast of the open questions in points of survival with its 95 % interval: right of the line the side named "
        "first survives longer, and an interval across the line tells neither.",
    ),
    Item(
        "figures/environments",
        "Action catalogues, and a grid under load",
        "Above, the number of actions of each substation, the largest first, on a logarithmic scale. Below, a training scenario "
        "at the first moment at which the agent is asked: loading of the lines in percent of their limits.",
    ),
)


class _Html(mistune.HTMLRenderer):
    """Markdown as HTML: headings below the page's own, tables in boxes that scroll, links as seen from results/."""

    def heading(self, text, level, **attributes):
        return super().heading(text, min(level + 2, 6), **attributes)

    def link(self, text, url, title=None):
        return super().link(text, url if re.match(r"[a-z]+:|#", url) else f"../{url}", title)

    def table(self, text):
        kind = "scroll by-second" if GROUPS.search(text) else "scroll"
        return f'<div class="{kind}" tabindex="0"><table>\n{text}</table></div>\n'

    def table_cell(self, text, align=None, head=False):
        if head:
            return f"<th>{text}</th>\n"
        if text in VERDICTS:
            kind = text.replace(" ", "-")
        else:
            kind = "number" if NUMBER.fullmatch(text) else "short" if len(text) <= SHORT else "long"
        return f'<td class="{kind}">{text}</td>\n'


_to_html = mistune.create_markdown(renderer=_Html(), plugins=["table"])


def items(results):
    """ITEMS, and after them what lies in tables/ and figures/ without being listed."""
    kinds = {"tables": {".csv", ".md"}, "figures": set(PICTURES)}
    there = sorted(
        {
            path.relative_to(results).with_suffix("").as_posix()
            for folder, endings in kinds.items()
            for path in (Path(results) / folder).glob("*")
            if path.suffix in endings
        }
    )
    listed = [item for each in ITEMS for item in each.among(there)]
    more = [place for place in there if place not in {item.place for item in listed}]
    return [*listed, *[Item(place, place.partition("/")[2].replace("_", " ").capitalize()) for place in more]]


def makers(pipeline, environments):
    """What dvc.yaml says: path of an output -> (stage, notebook). environments: for stages that have a cell of each."""
    made = {}
    for name, stage in yaml.safe_load(Path(pipeline).read_text(encoding="utf-8"))["stages"].items():
        stage = stage | stage.get("do", {})
        notebook = next((word for word in stage["cmd"].split() if word.endswith(".ipynb")), "")
        for out in [*stage.get("outs", []), *stage.get("metrics", [])]:
            path = out if isinstance(out, str) else next(iter(out))
            if set(stage.get("matrix", {})) == {"env"}:
                made |= {path.replace("${item.env}", env): (f"{name}@{env}", notebook) for env in environments}
            else:
                made[path] = (name, notebook)
    return made


def sections(readme):
    """README's title, its first paragraph, and heading -> text of its parts, all but the title as Markdown."""
    head, *parts = re.split(r"^## +(.+)\n", Path(readme).read_text(encoding="utf-8"), flags=re.MULTILINE)
    title, _, rest = head.strip().partition("\n")
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    for needed in (HOLDS, "Deviations from the paper", "Known issues"):
        if needed not in found:
            raise ReportError(f"{Path(readme).name} has no section `## {needed}`, which the report shows")
    if START not in found[HOLDS]:
        raise ReportError(f"{Path(readme).name} has no `{START}` in section `## {HOLDS}`, which the report shows down to it")
    return title.lstrip("# "), rest.strip().partition("\n\n")[0], found


def write(params, workspace, folded_rows=40):
    """Write results/report.html and results/report.csv (how each item was made). Returns the table of the latter.

    params: has scale, seeds and grid. workspace: folder with README.md, dvc.yaml and results/. folded_rows: a table that has no
    Markdown form and more rows than this is shown folded, as is an item that says so. Raises ReportError where claims.csv
    or a part of README is missing.
    """
    workspace = Path(workspace)
    results = workspace / "results"
    claims = read_written(results)
    title, introduction, parts = sections(workspace / "README.md")
    made = makers(workspace / "dvc.yaml", params.grid.environments)
    shown, missing, rows = [], [], []
    for item in items(results):
        body = _body(results, item, folded_rows)
        if body is None:
            missing.append(item)
            continue
        row = [item.title, *_made(params, results, item, made)]
        rows.append(row)
        shown.append({"item": item, "body": body, **dict(zip(COLUMNS[1:], row[1:], strict=True))})
    made_of = pd.DataFrame(rows, columns=COLUMNS).astype({"runs": "Int64", "seconds": "Int64"})
    linked = [
        [f"[{part['item'].title}](#{part['item'].anchor})", *_cells(row)] for part, row in zip(shown, rows, strict=True)
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    page = environment.get_template(TEMPLATE).render(
        title=title,
        introduction=_to_html(introduction),
        params=params,
        summary=summary_line(claims),
        holds=_to_html(parts[HOLDS].partition(START)[0]),
        # the table of README's first screen, less its first line; each claim leads to its criterion
        verdicts=_to_html(
            re.sub(r"^\| (C\d+) ", r"| [\1](#\1) ", readme_table(claims).partition("\n\n")[2], flags=re.M)
        ),
        claims=[(claim, ours(claim)) for claim in claims.itertuples()],
        kinds={kind: [part for part in shown if part["item"].place.startswith(kind)] for kind in ("tables", "figures")},
        missing=missing,
        made=_to_html(markdown(["Item", *map(str.capitalize, COLUMNS[1:-1]), "MD5"], linked)),
        deviations=_to_html(parts["Deviations from the paper"]),
        issues=_to_html(parts["Known issues"]),
    )
    (results / "report.html").write_text(page, encoding="utf-8", newline="\n")
    write_csv(made_of, results / "report.csv")
    return made_of


def _body(results, item, folded_rows):
    """The item as HTML, or None where there are no files of it."""
    path = results / item.place
    for ending, kind in PICTURES.items():
        picture = path.with_suffix(ending)
        if item.place.startswith("figures") and picture.is_file():
            data = base64.b64encode(picture.read_bytes()).decode()
            return f'<div class="scroll" tabindex="0"><img alt="{item.title}" src="data:{kind};base64,{data}"></div>\n'
    if path.with_suffix(".md").is_file():
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        text = _to_html(re.sub(r"\A# .*\n", "", text))  # its title is the item's
        return _folded(text, item) if item.folded else text
    if item.place.startswith("tables") and path.with_suffix(".csv").is_file():
        table = _read(path.with_suffix(".csv"))
        text = _to_html(markdown(list(table.columns), table.to_numpy().tolist()))
        return _folded(text, item) if item.folded or len(table) > folded_rows else text
    return None


def _folded(html, item):
    """Each table behind its number of rows; on paper a line that says where they are."""

    def fold(found):
        rows = f"{found[0].count('<tr') - 1} rows"
        there = f'<p class="unprinted">{rows}, not printed: <code>results/{item.place}.csv</code></p>'
        return f"<details><summary>{rows}</summary>{found[0]}</details>\n{there}\n"

    return re.sub(r'<div class="scroll.*?</div>\n', fold, html, flags=re.DOTALL)


def _made(params, results, item, made):
    """The cells of COLUMNS after the first: None for runs and seconds where the data don't say which runs are behind them."""
    files = [results / f"{item.place}{ending}" for ending in (".csv", ".md", *PICTURES)]
    data = next(path for path in files if path.is_file())
    file = f"results/{data.relative_to(results).as_posix()}"
    walls = _walls(params, results, _read(data)) if data.suffix == ".csv" else []
    seconds = round(sum(wall["train"] + wall["evaluate"] for wall in walls)) if walls else None
    return [file, *made.get(file, ("", "")), len(walls) or None, seconds, hashlib.md5(data.read_bytes()).hexdigest()]


def _walls(params, results, table):
    """wall_s of the runs that a table with columns env and variant is about. Training includes the language model's calls."""
    if not {"env", "variant"} <= set(table.columns):
        return []
    cells = table[["env", "variant"]].drop_duplicates().itertuples(index=False)
    paths = [
        results / "provenance" / env / variant / f"seed={seed}.json"
        for env, variant in cells
        for seed in seeds_of(params, variant)
    ]
    return [json.loads(path.read_text(encoding="utf-8"))["wall_s"] for path in paths if path.is_file()]


def _read(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _cells(row):
    """file, stage, notebook and MD5 as code; runs and seconds as numbers, "–" where nobody knows."""
    return ["–" if cell in (None, "") else f"`{cell}`" if isinstance(cell, str) else str(cell) for cell in row[1:]]
