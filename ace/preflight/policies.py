"""The trained policies that studies play: where a cell is there already, are its policies there too?

Git keeps those of `grid.kept`; where one lacks, DVC finds the cell up to date and would delete the study's results before the
study could say so. Any other is trained once more by the study that plays it, if checkpoints/ has it no more.
"""

import json

from ace.config import STUDIES
from ace.preflight.plan import fail, note, ok
from ace.run_files import cell_folder, read_cell
from ace.trained_policies import policy_of


def findings(params, cells, workspace, stages=None):
    """A FAIL for each cell of the workspace that lacks policies it should keep, with the command that makes them, a note for
    each whose policies would be trained once more; ok where there is neither.

    stages: names of all that would run, None for all of dvc.yaml: a study that is left out plays nothing.
    """
    studies = [study for study in STUDIES if stages is None or any(stage.startswith(f"measure_{study}@") for stage in stages)]
    makers, lacking = {(cell.environment, cell.variant): cell.stage for cell in reversed(cells)}, 0
    for environment in params.grid.everywhere:
        for variant in dict.fromkeys(v for study in studies for v in params.played(study, environment)[1]):
            stage, seeds = makers[environment, variant], params.seeds_of(variant)
            try:
                found = read_cell(cell_folder(workspace / "results", environment, variant))
            except FileNotFoundError:
                continue  # it will be run
            except ValueError as error:
                lacking += 1
                yield fail(stage, f"{error}: run `dvc repro -s -f cells/dvc.yaml:{stage}` first")
                continue
            settings = json.loads(json.dumps(params.settings(variant).as_recorded()))
            if any(seed not in found or found[seed].manifest.get("settings") != settings for seed in seeds):
                continue  # declared otherwise by now: it will be run
            missing = [seed for seed in seeds if policy_of(workspace, environment, variant, seed) is None]
            if missing:
                lacking += 1
                played = ", ".join(study for study in studies if variant in params.played(study, environment)[1])
                text = f"no policy of seed {', '.join(map(str, missing))}, which is played by {played}"
                if {*missing} & {*params.kept_seeds(environment, variant)}:
                    yield fail(stage, f"{text}: run `dvc repro -s -f cells/dvc.yaml:{stage}` first, which trains it once more")
                else:
                    yield note(stage, f"{text}: trained once more where one of them has to run")
    if not lacking:
        yield ok("trained policies", "those that studies play are there, or their cells will be run")
