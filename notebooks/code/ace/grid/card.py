import numpy as np
from ace.grid.scenarios import SPLITS

def environment_card(world):
    catalogue, spec = (world.catalogue, world.spec)
    by_sub = np.bincount(catalogue.sub[1:], minlength=catalogue.n_sub)
    return {'grid2op': spec.grid2op, 'substations': catalogue.n_sub, 'lines': catalogue.n_line, 'loads': int(world.env.n_load), 'generators': int(world.env.n_gen), 'actions': catalogue.n - 1, 'actions_by_substation': by_sub.tolist(), 'hub': catalogue.hub, 'hub_share': round(float(by_sub.max() / by_sub.sum()), 4), 'thermal_factor': spec.thermal_factor, 'horizon': spec.horizon, 'opponent': spec.opponent, 'source_days': len(world.source.chronic), 'splits': {split: _split(world.sets[split]) for split in SPLITS}}

def _split(scenarios):
    load = np.concatenate([scenarios[i].load_p.sum(axis=1) for i in range(min(len(scenarios), 20))])
    return {'scenarios': len(scenarios), 'source_days': scenarios.days.tolist(), 'hash': scenarios.hash(), 'load_mw': {'mean': round(float(load.mean()), 1), 'min': round(float(load.min()), 1), 'max': round(float(load.max()), 1)}}
