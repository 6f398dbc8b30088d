"""The runs of the declared grid: environments x variants x seeds of params.yaml, and nothing else.

The grid is `params.grid`: its environments, times its baselines and lm_baselines (which learn nothing: one run, seed 0)
and variants (one run for each of `params.seeds`), and its ablations on their environment with their seeds. Seeds and folders
are never globbed: a run left over from another scale, or of a variant that is no longer declared, must not find its way into a
table. What is read is checked: every run is there, belongs to this scale, and was tested on the same episodes as the
others of its environment.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ace.config.errors import OneLine
from ace.run_files import LOWER, MARK, REDRAW, cell_folder, frame, read_cell, read_provenance

# metric -> (column of episodes.csv, factor); one value for each seed and test episode
EPISODE_METRICS = {
    "survival": ("survival", 100.0),  # percent of the horizon
    "survived_steps": ("survived_steps", 1.0),
    "reward": ("reward", 1.0),  # sum over the episode
    "decisions": ("decisions", 1.0),
    "topology_actions": ("topology_actions", 1.0),
    "simulator_calls_test": ("simulator_calls", 1.0),  # AC power flows an episode
    "dc_calls_test": ("dc_calls", 1.0),
    "llm_calls_test": ("llm_calls", 1.0),  # zero for a deployed policy
}
# one value for each seed
RUN_METRICS = {
    # training, validation, the language model's corpus, branches: each is a power flow of the environment itself
    "env_steps_to_train": lambda manifest: sum(
        manifest["budget"].get(phase, {}).get("env_steps", 0) for phase in ("train", "validation", "corpus", "branches")
    ),
    "refinements": lambda manifest: manifest.get("refinements", 0),  # a baseline has none
}


def adjusted(manifest):
    """Decisions that g_LLM adjusted, of a guarded run those that entered D_LLM; None where it is not recorded."""
    return manifest.get("roles", {}).get("signal", {}).get("judgements_promoted", manifest.get("shaped"))


AFTER_THE_TEST = ("packaged", "marks", "redraws", "repeats", "lower")  # phases of a budget that no table charges to the method


class ReportError(OneLine, Exception):
    """What is wrong with the run files, in one line that says what to do."""


@dataclass(frozen=True)
class Run:
    """One seed of a cell, from results/runs/ and results/provenance/; training and provenance are None where there are none.

    folder: results/runs/<env>/<variant>/seed=<n>, its name in messages; episodes: of the test, on which every table rests;
    manifest: with what all seeds share; packaged: episodes of the split of that name, None where it was not played.
    redraws: (D, E) survival of the test episodes under D other draws of the opponent, None where they were not played
    at_marks: mark -> (E,) survival in the test of the policy that was kept there
    lower: (E,) survival in the test at lower thermal limits, None where it was not played
    """

    seed: int
    folder: str
    episodes: pd.DataFrame
    training: pd.DataFrame | None
    manifest: dict
    provenance: dict | None
    packaged: pd.DataFrame | None = None
    redraws: np.ndarray | None = None
    at_marks: dict = field(default_factory=dict)
    lower: np.ndarray | None = None

    @property
    def checkpoint(self):
        """Row of training at which the policy was saved that is tested (run_files.CHECKPOINT_RULE)."""
        return self.training.sort_values(["survival", "reward_mean"], ascending=False, kind="stable").iloc[0]


@dataclass(frozen=True)
class Runs:
    """The runs of a declared grid, in the order of params.yaml. An ablation has a cell in one environment only."""

    scale: str
    environments: list
    variants: list
    cells: dict = field(repr=False)  # (env, variant) -> [Run], by seed
    test_split: str = "test"
    """Which weeks were tested on, in words; of a grid without weeks "test"."""

    def of(self, env, variant, seeds=None):
        """The runs of one cell, ascending by seed: list of Run. seeds: a selection, None: all."""
        return [run for run in self.cells[env, variant] if seeds is None or run.seed in seeds]

    def methods_of(self, env):
        """Variants that were run in this environment."""
        return [variant for variant in self.variants if (env, variant) in self.cells]

    def environments_of(self, variants):
        """Environments in which all of these variants were run."""
        return [env for env in self.environments if all((env, variant) in self.cells for variant in variants)]

    def counted(self, envs):
        """Those of the environments whose test scenarios are not of a day that was trained on: the others count for no claim."""
        days = {env: self._environment(env).get("days") or {} for env in envs}
        return [env for env in envs if not {*days[env].get("train", ())} & {*days[env].get("test", ())}]

    def _environment(self, env):
        """What the manifests say of it."""
        return next((run.manifest.get("environment", {}) for (e, _), runs in self.cells.items() if e == env for run in runs), {})

    def test(self, n=None):
        """What was tested on, by the manifests: "development test: 12 weeks". n: episodes, where not all of the test's; ""
        without runs."""
        found = [len(run.episodes) for runs in self.cells.values() for run in runs]
        if not found:
            return ""
        weeks = any(self._environment(env).get("weeks") for env in self.environments)
        split, what = (self.test_split, "week") if weeks else ("test", "resampled scenario")
        n = n or max(found)
        return f"{split}: {n} {what}{'' if n == 1 else 's'}"

    def tested(self, n=None):
        """Scale and test for a title: "scale quick, development test: 6 weeks"; n as of `test`."""
        return ", ".join(filter(None, [f"scale {self.scale}", self.test(n)]))

    def seeds_of_all(self, env, variants):
        """Seeds that every one of these variants was run with, ascending; ReportError where there is none."""
        common = set.intersection(*({run.seed for run in self.of(env, variant)} for variant in variants))
        if not common:
            raise ReportError(
                f"{', '.join(variants)} have no seed in common in {env}: let seeds and grid.ablations.seeds overlap"
            )
        return sorted(common)

    def scores(self, env, variant, metric, seeds=None):
        """(S, E) float for a metric of episodes, (S, 1) for a metric of runs. seeds: as of `of`."""
        runs = self.of(env, variant, seeds)
        if metric in RUN_METRICS:
            return np.array([[float(RUN_METRICS[metric](run.manifest))] for run in runs])
        column, factor = EPISODE_METRICS[metric]
        return factor * np.stack([run.episodes[column].to_numpy(float) for run in runs])

    def on_packaged(self, env, variant):
        """(S, E) survival in percent on the split `packaged`, or None where not every seed has played it."""
        played = [run.packaged for run in self.of(env, variant)]
        return None if any(each is None for each in played) else 100 * np.stack([each["survival"] for each in played])

    def at_lower_limits(self, env, variant):
        """(S, E) survival in percent in the test at lower thermal limits, or None where not every seed has played it."""
        played = [run.lower for run in self.of(env, variant)]
        return None if any(each is None for each in played) else 100 * np.stack(played)

    def spent(self, env, variant, what, seeds=None):
        """Everything one run used, all phases together (training, validation, language-model corpus, test; not what it was
        asked in the plays after that).

        what: "simulator_calls" (AC power flows), "dc_calls" or "llm_calls". Returns the mean over the seeds (as of `of`); the
        corpus is counted whole for every seed, since training a single agent needs all of it.
        """
        budgets = [run.manifest["budget"].items() for run in self.of(env, variant, seeds)]
        totals = [sum(used.get(what, 0) for phase, used in budget if phase not in AFTER_THE_TEST) for budget in budgets]
        return sum(totals) / len(totals)

    def seconds(self, env, variant, phase):
        """Wall seconds of one run in a phase ("train", "evaluate", "llm", "finetune"), mean of the seeds whose provenance
        is there; nan without any."""
        walls = [run.provenance["wall_s"] for run in self.of(env, variant) if run.provenance]
        found = [wall[phase] for wall in walls if phase in wall]
        return float(np.mean(found)) if found else float("nan")


def declared(params):
    """Names of all methods that are run on every environment of the grid, baselines first."""
    return params.grid.main


def ablations(params):
    """Names of the methods that are run on the ablations' environment only."""
    home, everywhere = params.grid.ablations.environment, declared(params)
    there = [variant for kind, env, variant in params.grid.cells if env == home and kind != "budget"]
    return [variant for variant in there if variant not in everywhere]


def measured(params, results, study):
    """Environments of the grid for which a study has results/studies/<study>/<env>.csv, in order; ReportError where none has.

    A study that needs the policies of a grid is measured once all its runs are there, on the same kind of processor.
    """
    names = params.grid.environments
    found = [env for env in names if (Path(results) / "studies" / study / f"{env}.csv").is_file()]
    if not found:
        raise ReportError(f"no results/studies/{study}/{names[0]}.csv: run notebooks/studies/{study}_measure.ipynb")
    return found


def target(params, env, variant):
    """The DVC target that makes a cell's run files."""
    return next(f"cells/dvc.yaml:{stage}@{env}-{variant}" for stage, *cell in params.grid.cells if cell == [env, variant])


def read(params, results, variants=None):
    """Read and check the run files of the declared grid.

    params: has scale, seeds and grid. results: folder. variants: a selection, in the order given, on every environment or,
    where an ablation is among them, on the ablations' one; None or empty for all that are declared, each where it is run.
    Returns Runs, or raises ReportError.
    """
    everywhere, environments = declared(params), list(params.grid.environments)
    methods = [*everywhere, *ablations(params)]
    for variant in variants or []:
        if variant not in methods:
            raise ReportError(f"variant {variant} is not in the grid of params.yaml; there are {', '.join(methods)}")
    if set(variants or []) - set(everywhere):
        environments = [params.grid.ablations.environment]
    variants = list(variants or methods)
    home = params.grid.ablations.environment
    cells = [(env, variant) for env in environments for variant in variants if variant in everywhere or env == home]
    return replace(read_cells(params, results, cells), variants=variants)


def read_played(params, results, study, env, methods, others=()):
    """results/studies/<study>/<env>.csv, of what is declared only: DataFrame, or ReportError where it is not there or old.

    methods: variants with a row for each of their declared seeds; others: what else `variant` may name.
    """
    path, remedy = f"results/studies/{study}/{env}.csv", f"run notebooks/studies/{study}_measure.ipynb"
    if not (file := Path(results) / "studies" / study / f"{env}.csv").is_file():
        raise ReportError(f"no {path}: {remedy}")
    table = pd.read_csv(file)
    for variant in methods:
        if sorted(set(table.loc[table["variant"] == variant, "seed"])) != sorted(params.seeds_of(variant)):
            raise ReportError(f"{path} has not the declared seeds of {variant}: {remedy}")
    return table[table["variant"].isin([*methods, *others])]


def read_cells(params, results, cells):
    """The same for declared cells, [(env, variant)], in their order."""
    found = {cell: _read_cell(results, params, *cell) for cell in cells}
    environments, variants = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True)) if cells else ([], [])
    for env in environments:
        here = [cell for cell in cells if cell[0] == env]
        _check_same_test([(target(params, *cell), run) for cell in here for run in found[cell]])
    return Runs(params.scale, environments, variants, found, params.scenarios.test_split.replace("_", " "))


def _read_cell(results, params, env, variant):
    """Runs of the declared seeds of one cell, ascending."""
    name, remedy = f"results/runs/{env}/{variant}", f"run `dvc repro {target(params, env, variant)}`"
    folder = cell_folder(results, env, variant)
    try:
        found, noted = read_cell(folder), read_provenance(results, env, variant)
    except (FileNotFoundError, ValueError) as error:
        raise ReportError(f"{str(error).replace(str(folder), name)}: {remedy}") from None
    declared_seeds = params.seeds_of(variant)
    for seed in declared_seeds:
        if seed not in found:
            raise ReportError(f"no seed {seed} in {name}: {remedy}")
    return [_run(found[seed], f"{name}/seed={seed}", noted.get(seed), params, (env, variant), remedy) for seed in declared_seeds]


def _run(seed_files, name, provenance, params, cell, remedy):
    manifest, env, variant = seed_files.manifest, *cell
    trained = ["refinements"] if seed_files.training is not None else []
    for key in ("env", "variant", "scale", "test_hash", "budget", *trained):
        if key not in manifest:
            raise ReportError(f"the manifest of {name} has no {key}: {remedy}")
    for key, expected in (("env", env), ("variant", variant), ("scale", params.scale)):
        if manifest[key] != expected:
            raise ReportError(f"{name} was made for {key} {manifest[key]}, but {expected} is declared: {remedy}")
    played = frame(seed_files.episodes).sort_values("episode")
    episodes, packaged = (played[played["split"] == s].reset_index(drop=True) for s in ("test", "packaged"))
    columns = [column for column, _ in EPISODE_METRICS.values()]
    if episodes.empty or episodes[columns].isna().any(axis=None):
        raise ReportError(f"{name}: no test episodes or empty cells in episodes.csv: {remedy}")
    training = None if seed_files.training is None else frame(seed_files.training)
    splits = {split: rows["survival"].to_numpy(float) for split, rows in played.groupby("split", sort=False)}
    redraws = [survival for split, survival in splits.items() if split.startswith(REDRAW.format(""))]
    at_marks = {mark["decisions"]: splits.get(MARK.format(mark["decisions"])) for mark in manifest.get("marks", [])}
    if unplayed := [mark for mark, survival in at_marks.items() if survival is None]:
        raise ReportError(f"{name}: episodes.csv has no test of the policy at mark {unplayed[0]} of its manifest: {remedy}")
    return Run(
        manifest["seed"], name, episodes, training, manifest, provenance, None if packaged.empty else packaged,
        np.stack(redraws) if redraws else None, at_marks, splits.get(LOWER),
    )  # fmt: skip


def _check_same_test(runs):
    """runs: (DVC target, Run) of one environment.

    The hash identifies the whole test set; the list of episodes is compared as well, since tables pair rows by it. Those that
    have played the packaged days have played the same, and those at lower limits at the same ones.
    """
    _check_same_hash([(name, run) for name, run in runs if run.lower is not None], "lower_limits")
    _check_same_hash([(name, run) for name, run in runs if run.packaged is not None], "packaged_hash")
    _check_same_hash(runs, "test_hash")
    first_target, first = runs[0]
    identity = ["episode", "scenario", "horizon"]
    for name, run in runs[1:]:
        if not run.episodes[identity].equals(first.episodes[identity]):
            both = f"`dvc repro -s -f {name} {first_target}`"
            raise ReportError(f"{run.folder} and {first.folder} list different test episodes: run {both}")


def _check_same_hash(runs, key):
    """key: of the manifest, of what was played."""
    for name, run in runs[1:]:
        first_target, first = runs[0]
        mine, other = (str(each.manifest.get(key, "none"))[:12] for each in (run, first))
        if mine != other:
            what = "at other limits" if key == "lower_limits" else "on other scenarios"
            raise ReportError(
                f"{run.folder} was tested {what} ({key} {mine}) than {first.folder} ({other}): "
                f"run `dvc repro {name}` or `dvc repro {first_target}`, whichever is old"
            )
