"""Run files for tests, made and changed one seed at a time."""

import csv
import io
from dataclasses import replace

from ace.run_files import SeedFiles, cell_folder, frame, note_provenance, read_cell, read_provenance, write_cell


def bare(grid, **declared):
    """The grid (config.Grid) with nothing in its lists but what is declared."""
    empty = {name: [] for name in ("variants", "baselines", "lm_baselines", "other_model", "one_run")}
    groups = {"more_seeds": ("seeds", "variants"), "ablations": ("variants",), "also": ("environments", "variants", "controls")}
    groups |= {"pretrained": ("environments", "variants"), "budget": ("environments", "variants")}
    for name, lists in groups.items():
        empty[name] = getattr(grid, name).model_copy(update={each: [] for each in lists})
    return grid.model_copy(update={**empty, **declared})


def rows(table):
    """A DataFrame as rows of text, in full precision."""
    return list(csv.DictReader(io.StringIO(table.to_csv(index=False))))


def write_seed(results, manifest, episodes, training=None, provenance=None):
    """Adds a seed to its cell. manifest: with env, variant and seed; episodes, training: DataFrames."""
    env, variant, seed = manifest["env"], manifest["variant"], manifest["seed"]
    folder = cell_folder(results, env, variant)
    cell = read_cell(folder) if folder.exists() else {}
    learned = None if training is None else rows(training)
    write_cell(folder, cell | {seed: SeedFiles(manifest, rows(episodes), learned, folder / f"seed={seed}")})
    if provenance is not None:
        change_provenance(results, f"{env}/{variant}/seed={seed}", provenance)


def change_provenance(results, run, entry):
    """Replaces what was noted of a run, "env/variant/seed=n"; None removes it."""
    env, variant, seed = _parts(run)
    noted = read_provenance(results, env, variant) | {seed: entry}
    note_provenance(results, env, variant, {number: each for number, each in noted.items() if each is not None})


def manifest_of(results, run):
    return _cell(results, run)[_parts(run)[2]].manifest


def change_manifest(results, run, **changes):
    """Replaces entries of the manifest of a run, "env/variant/seed=n"."""
    _change(results, run, lambda files: replace(files, manifest={**files.manifest, **changes}))


def change_episodes(results, run, change):
    """change: of the DataFrame of the episodes, which returns the new one."""
    _change(results, run, lambda files: replace(files, episodes=rows(change(frame(files.episodes)))))


def change_training(results, run, change):
    """change: of the DataFrame of the learning curve, which returns the new one, or None for no curve."""

    def changed(files):
        new = change(None if files.training is None else frame(files.training))
        return replace(files, training=None if new is None else rows(new))

    _change(results, run, changed)


def drop_seed(results, run):
    _change(results, run, lambda files: None)


def _parts(run):
    env, variant, seed = run.split("/")
    return env, variant, int(seed.removeprefix("seed="))


def _cell(results, run):
    return read_cell(cell_folder(results, *_parts(run)[:2]))


def _change(results, run, change):
    cell, seed = _cell(results, run), _parts(run)[2]
    new = change(cell.pop(seed))
    write_cell(cell_folder(results, *_parts(run)[:2]), cell | ({} if new is None else {seed: new}))
