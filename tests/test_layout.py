"""The shape of the repository: sizes, the one way of imports, clean notebooks, no traces of a machine."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ace"
MODULES = sorted(PACKAGE.rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
MOST_MODULES_ON_TOP = 11

# A room may import from those of an earlier line only.
ORDER = (
    {"config", "stats"},
    {"run_files"},
    {"pool"},
    {"grid"},
    {"episodes", "chronics"},
    {"rl", "llm"},  # they do not know each other: only coevolve joins them
    {"baselines", "coevolve"},
    {"evaluate"},
    {"also"},
    {"experiment"},
    {"trained_policies"},
    {"deploy"},
    {"measure"},  # ace/studies, without what it draws
    {"report"},
    {"show"},  # the drawings of ace/studies
    {"preflight"},
    {"pipeline"},
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
OF_THE_PIPELINE = {"dvc", "papermill", "jupyter_client", "ipykernel", "nbformat", "nbclient"}

# Put together here, or this file would hold what it forbids.
MACHINE = [
    *(rf"(?<![\w.]){folder}/\w" for folder in ("/" + name for name in ("home", "Users", "root", "work", "opt", "mnt"))),
    r"\b" + "file:" + "//",
    r"(?i)\b(?:(?:extra-)?index|find-links)[-_ ]?(?:url)?\s*[=:]\s*\S*" + "//",
    r"(?i)\b(?:pypi|files|download)\." + r"(?:org|pythonhosted\.org|pytorch\.org)\b",
]
SECRET = [
    r"\bsk-" + r"[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_" + r"[A-Za-z0-9]{30,}",
    r"\bhf_" + r"[A-Za-z0-9]{30,}",
    r"\bAKIA" + r"[0-9A-Z]{16}\b",
    "-----BEGIN " + r"[A-Z ]*PRIVATE KEY",
    r"(?i)\b(?:api_?key|token|password|secret)\s*[=:]\s*[\"'][A-Za-z0-9+/_-]{16,}[\"']",
]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(name):
    """`ace.rl.sac` -> `rl`; studies are two rooms, measure and show; packages that hold no code have none."""
    parts = name.split(".")
    if parts[1:2] == ["studies"]:
        return None if len(parts) < 3 else "show" if parts[-1] == "show" else "measure"
    return parts[1] if len(parts) > 1 else None


def imports(path):
    """Absolute names of what a module imports, in functions too; `from ace.rl import sac` is ace.rl and ace.rl.sac."""
    names = {module_name(each) for each in MODULES}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide the rooms"
            yield node.module
            yield from (full for alias in node.names if (full := f"{node.module}.{alias.name}") in names)


def tracked():
    """Files of git, or those that would be: tracked and untracked but not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git repository")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_module_is_long():
    lengths = {module_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 350} == {}


def test_the_top_level_is_short():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_MODULES_ON_TOP


def test_imports_point_one_way():
    wrong = []
    for path in MODULES:
        own = room(module_name(path))
        if own == "pipeline":  # it starts the others as processes; it only reads the parameters and where runs lie
            assert {room(name) for name in imports(path) if name.startswith("ace.")} <= {"pipeline", "config", "run_files"}
        for name in imports(path):
            other = room(name) if name.split(".")[0] == "ace" else None
            if other and own != other and LEVEL[other] >= LEVEL[own]:
                wrong.append(f"{module_name(path)} imports {name}")
    assert wrong == []


def test_every_room_has_its_place_in_the_order():
    rooms = {room(module_name(path)) for path in MODULES} - {None}
    assert rooms <= set(LEVEL)


def test_no_import_cycle():
    names = {module_name(path): path for path in MODULES}
    graph = {name: {n for n in imports(path) if n in names and n != name} for name, path in names.items()}
    done = set()

    def visit(name, way):
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*way, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_only_the_pipeline_knows_of_the_tools():
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in MODULES
        if room(module_name(path)) != "pipeline"
        for name in imports(path)
        if name.split(".")[0] in OF_THE_PIPELINE
    ]
    assert wrong == []


def test_no_tracked_file_names_a_machine_or_a_secret():
    patterns = [re.compile(pattern) for pattern in [*MACHINE, *SECRET]]
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            if '"image/' in line:  # base64 holds anything
                continue
            found += [f"{path.relative_to(ROOT)}:{number}: {p.pattern}" for p in patterns if p.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("data = open('/" + "home/ann/x.csv')", MACHINE),
        ("see /" + "work/main/x", MACHINE),
        ("--find-" + "links=https://mirror.example/x", MACHINE),
        ("key = 'sk-" + "a1" * 12 + "'", SECRET),
        ('API_KEY = "' + "0a" * 12 + '"', SECRET),
    ],
)
def test_the_forbidden_patterns_catch_their_kind(line, kind):
    assert any(re.search(pattern, line) for pattern in kind)


@pytest.mark.parametrize(
    "line", ["results/runs/home/x", "ace/work/y.py", "token = tokens[0]", "https://arxiv.org/abs/1"]
)
def test_the_forbidden_patterns_leave_the_rest(line):
    assert not [pattern for pattern in [*MACHINE, *SECRET] if re.search(pattern, line)]


def test_nothing_generated_is_tracked():
    kinds = ("/__pycache__/", ".egg-info/", ".ipynb_checkpoints/", ".failed.ipynb", ".running.ipynb", "/checkpoints/")
    assert [str(path) for path in tracked() if any(kind in path.as_posix() for kind in kinds)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_source_notebook_is_clean(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1, "exactly one cell is tagged `parameters`"
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
