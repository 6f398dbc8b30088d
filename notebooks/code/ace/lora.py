from functools import lru_cache
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from ace import config
from ace.grid.whatif import WhatIf
from ace.llm import adaptation, embedded
from ace.llm.clients import LocalClient
from ace.llm.heldout import heldout_states, one_proposal
from ace.llm.stats import mean_interval
from ace.llm.team import read_card
from ace.llm.text import TextMap
from ace.replay import play_tasks
AS_RUN = 'as_run'
COLUMNS = ['grid', 'proposer', 'metric', 'value', 'ci_low', 'ci_high', 'n_states', 'setting', 'before']
COLUMNS += ['refinements', 'simulator_calls', 'dc_calls', 'env_steps', 'llm_calls']

def try_settings(environment, output='results'):
    params = config.load()
    params.environment(environment)
    _card(environment)
    tasks = [(environment, name) for name in (AS_RUN, *params.lora)]
    table = pd.DataFrame(play_tasks(_gain, tasks, f'{environment}, LoRA'), columns=COLUMNS)
    path = Path(config.root()) / output / 'lora' / f'{environment}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format='%.6g', lineterminator='\n')
    return table

def _folder(environment):
    return config.root() / 'results' / 'language_model' / environment

def _card(environment):
    settings = config.load().base.llm.model_copy(update={'path': 'results/language_model/{env}'})
    return read_card(settings, environment, config.root())

@lru_cache(maxsize=1)
def _bench(environment):
    torch.set_num_threads(1)
    params, card = (config.load(), _card(environment))
    settings = params.language_model
    world = adaptation.rescaled_world(params, environment, settings.seed)
    textmap, actions = (TextMap(world), np.array(card['actions']))
    world.line = textmap.line.index(card['shift']['line_out'])
    world.attack_rng = np.random.default_rng([settings.seed, 11])
    margin, n = (params.base.refine.margin, settings.heldout_states)
    states, _ = heldout_states(world, WhatIf(world), actions, settings.shortlist, margin, n, settings.seed)
    return (params, world, textmap, actions, states, *embedded.load(_folder(environment)))

def _gain(environment, name):
    params, world, textmap, actions, states, model, tokenizer = _bench(environment)
    seed, finetune = (params.language_model.seed, params.lora_settings(name))
    params = params.model_copy(update={'base': params.base.model_copy(update={'finetune': finetune})})
    client = LocalClient(model, tokenizer, params.base.llm, f'embedded-{environment}')
    world.attack_rng, world.env_steps = (np.random.default_rng([seed, 12]), 0)
    whatif = WhatIf(world)
    before = one_proposal(client, textmap, whatif, states, params.base.refine, seed)
    whatif, client.calls = (WhatIf(world), 0)
    refinements = adaptation.lora_rounds(client, world, whatif, actions, textmap, params, finetune.every)
    after = one_proposal(client, textmap, whatif, states, params.base.refine, seed)
    gain = mean_interval(np.subtract(after, before, dtype=float), seed)
    return {'grid': environment, 'proposer': 'model_after_lora', 'metric': 'lora_gain', **gain, 'n_states': len(states), 'setting': name, 'before': np.mean(before), 'refinements': sum(refinements), 'simulator_calls': whatif.ac_calls, 'dc_calls': whatif.dc_calls, 'env_steps': world.env_steps, 'llm_calls': client.calls}
