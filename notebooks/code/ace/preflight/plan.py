from dataclasses import dataclass
from typing import NamedTuple
from ace.config.settings import Settings
SHARES = 3
CARD = 'results/language_model/{env}'

class Finding(NamedTuple):
    state: str
    what: str
    text: str

def ok(what, text):
    return Finding('ok', what, text)

def note(what, text):
    return Finding('note', what, text)

def fail(what, text):
    return Finding('FAIL', what, text)

@dataclass(frozen=True)
class Cell:
    stage: str
    environment: str
    variant: str
    settings: Settings
    seeds: tuple
    decisions: int

    @property
    def tunes(self):
        s = self.settings
        local = s.llm.client in ('embedded', 'checkpoint')
        return local and s.method == 'sac' and s.finetune.enabled and s.refine.enabled and s.refine.by_llm

    @property
    def diagnoses(self):
        return self.stage.startswith('diagnosis@')

    @property
    def needs_card(self):
        s = self.settings
        looks_up = s.method == 'sac' and s.refine.enabled and (s.refine.proposer == 'frequency')
        return s.method == 'dc_argmin' or looks_up

def cells(params):
    grid, found = (params.grid, [])

    def add(stage, environment, variant, seeds, decisions=None):
        settings = params.settings(variant)
        most = settings.train.decisions if settings.method == 'sac' else 0
        found.append(Cell(stage, environment, variant, settings, tuple(seeds), min(decisions or most, most)))
    kinds = {'baseline': grid.baselines, 'lm_baseline': grid.lm_baselines, 'train': grid.variants, 'other_model': grid.other_model}
    for kind, variants in kinds.items():
        for environment in grid.environments:
            for variant in variants:
                seeds = params.seeds if kind in ('train', 'other_model') else [0]
                add(f'{kind}@{environment}-{variant}', environment, variant, seeds)
    ablations = grid.ablations
    for variant in ablations.variants:
        add(f'ablation@{variant}', ablations.environment, variant, ablations.seeds)
    few = min(params.diagnosis.decisions, params.settings('ace').train.decisions // 2)
    for environment in grid.environments:
        add(f'diagnosis@{environment}', environment, 'ace', range(SHARES * params.diagnosis.seeds), few)
    return found

def environments(params):
    return list(dict.fromkeys([*params.grid.environments, params.grid.ablations.environment]))
