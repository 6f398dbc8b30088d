import numpy as np
import pandas as pd
from ace.llm.roles import BadCase, PolicyActor
from ace.llm.stats import mean_interval
DRAWS = 5

def rates(grid, whatif, textmap, client, states, settings, ranking, seed, unmasked=None):
    columns, records = outcomes(whatif, textmap, client, states, settings, ranking, seed, unmasked)
    return (tabled(grid, columns, seed), records)

def tabled(grid, columns, seed, groups=None):
    return pd.DataFrame(({'grid': grid, 'proposer': proposer, 'metric': metric, **mean_interval(values, seed, groups), 'n_states': len(values)} for (proposer, metric), values in columns.items()))

def outcomes(whatif, textmap, client, states, settings, ranking, seed, unmasked=None):
    catalogue, rng = (textmap.catalogue, np.random.default_rng([seed, 5]))
    nothing = [whatif.simulate(state, 0).reward for state in states]

    def improves(i, action):
        return whatif.simulate(states[i], int(action)).reward > nothing[i] + settings.margin

    def proposals(actor):
        refined = actor.refine([BadCase(i, state, 0, nothing[i]) for i, state in enumerate(states)], seed)
        first = actor.recorder.records[-actor.counts['proposals']:][:len(states)]
        return (refined, [getattr(textmap.parse_action(record['reply']), 'value', None) for record in first])
    actor = PolicyActor(client, textmap, whatif, settings)
    refined, actions = proposals(actor)
    legal_ids = [catalogue.legal_ids(catalogue.legality(s.topo, s.cooldown_sub, True)) for s in states]
    allowed = [set(ids.tolist()) for ids in legal_ids]
    legal = [a in ids for a, ids in zip(actions, allowed, strict=True)]
    columns = {('model', 'one_proposal'): [ok and improves(i, actions[i]) for i, ok in enumerate(legal)], ('model', 'five_rounds'): [r is not None and r.improved for r in refined], ('model', 'parse'): [a is not None for a in actions], ('model', 'legal'): legal}
    if unmasked:
        _, free = proposals(PolicyActor(unmasked, textmap, whatif, settings.model_copy(update={'rounds': 1})))
        columns['model', 'parse_unmasked'] = [a is not None for a in free]
        columns['model', 'legal_unmasked'] = [a in ids for a, ids in zip(free, allowed, strict=True)]
    subs = [int(catalogue.sub[a]) for a in actions if a]
    for name in ('random_same_substation', 'random'):
        hits = []
        for i, ids in enumerate(legal_ids):
            if name == 'random':
                options = ids[ids > 0]
            else:
                sub = int(catalogue.sub[actions[i]]) if actions[i] else int(rng.choice(subs)) if subs else -1
                options = ids[catalogue.sub[ids] == sub]
            draws = rng.choice(options, size=DRAWS) if len(options) else []
            hits.append([improves(i, a) for a in draws] or [False])
        columns[name, 'one_proposal'] = [float(np.mean(h)) for h in hits]
        columns[name, 'five_rounds'] = [any(h) for h in hits]
    hits = []
    for i, ids in enumerate(allowed):
        hits.append([improves(i, a) for a in [a for a in ranking if a in ids][:DRAWS]] or [False])
    columns['frequency', 'one_proposal'] = [h[0] for h in hits]
    columns['frequency', 'five_rounds'] = [any(h) for h in hits]
    return (columns, actor.recorder.records)
