import numpy as np
import pandas as pd
from ace.llm.corpus import BEHAVIOURS, best_of, legal_of
from ace.llm.roles import BadCase, PolicyActor
A_SCENARIO = 15
DRAWS = 5
BOOTSTRAPS = 2000

def heldout_states(world, whatif, actions, shortlist, n, seed):
    states, n_scenarios = ([], len(world.sets['validation']))
    for number in range(2 * n_scenarios * len(BEHAVIOURS)):
        rng = np.random.default_rng([seed, 4, number])
        p_best, p_random = BEHAVIOURS[number // n_scenarios % len(BEHAVIOURS)]
        step, taken = (world.reset('validation', number % n_scenarios), 0)
        while not step.over and taken < A_SCENARIO:
            state, action = (step.state, 0)
            values, legal = (whatif.ac(state, actions), legal_of(world.catalogue, state, actions))
            best = best_of(values, legal)
            if rng.random() < 0.5 and _improvable(world, whatif, state, values[best], values[0], shortlist):
                states.append(state)
                taken += 1
            draw = rng.random()
            if draw < p_best:
                action = int(actions[best])
            elif draw < p_best + p_random:
                action = int(rng.choice(actions[legal]))
            step = world.step(action)
        if len(states) >= n:
            break
    return states[:n]

def _improvable(world, whatif, state, best, nothing, shortlist):
    nothing = nothing if np.isfinite(nothing) else np.inf
    if best < nothing:
        return True
    legality = world.catalogue.legality(state.topo, state.cooldown_sub, True)
    return bool(whatif.best(state, legality, shortlist)[1][0] < nothing)

def rates(grid, whatif, textmap, client, states, settings, ranking, seed):
    catalogue, rng = (textmap.catalogue, np.random.default_rng([seed, 5]))
    nothing = [whatif.simulate(state, 0).reward for state in states]

    def improves(i, action):
        return whatif.simulate(states[i], int(action)).reward > nothing[i] + settings.margin
    actor = PolicyActor(client, textmap, whatif, settings)
    refined = actor.refine([BadCase(i, state, 0, nothing[i]) for i, state in enumerate(states)], seed)
    first = actor.recorder.records[-actor.counts['proposals']:][:len(states)]
    proposed = [textmap.parse_action(record['reply']) for record in first]
    actions = [getattr(parsed, 'value', None) for parsed in proposed]
    legal_ids = [catalogue.legal_ids(catalogue.legality(s.topo, s.cooldown_sub, True)) for s in states]
    legal = [a is not None and a in set(ids.tolist()) for a, ids in zip(actions, legal_ids, strict=True)]
    columns = {('model', 'one_proposal'): [ok and improves(i, actions[i]) for i, ok in enumerate(legal)], ('model', 'five_rounds'): [r is not None and r.improved for r in refined], ('model', 'parse'): [a is not None for a in actions], ('model', 'legal'): legal}
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
    for i, ids in enumerate(legal_ids):
        allowed = set(ids.tolist())
        hits.append([improves(i, a) for a in [a for a in ranking if a in allowed][:DRAWS]] or [False])
    columns['frequency', 'one_proposal'] = [h[0] for h in hits]
    columns['frequency', 'five_rounds'] = [any(h) for h in hits]
    rows = [{'grid': grid, 'proposer': proposer, 'metric': metric, **_interval(values, seed), 'n_states': len(states)} for (proposer, metric), values in columns.items()]
    return (pd.DataFrame(rows), actor.recorder.records)

def _interval(values, seed):
    values = np.asarray(values, dtype=float)
    rng = np.random.default_rng([seed, 6])
    means = values[rng.integers(len(values), size=(BOOTSTRAPS, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {'value': round(float(values.mean()), 4), 'ci_low': round(float(low), 4), 'ci_high': round(float(high), 4)}
