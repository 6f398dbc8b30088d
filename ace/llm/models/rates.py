"""How good a proposer is, measured live in the simulator on held-out states of danger (validation scenarios).

It is compared with three other proposers: a random action at the substations that the
model proposes, a random action of the catalogue, and the actions most often best in training states (a lookup table).
"""

import numpy as np
import pandas as pd

from ace.llm.policy_actor import BadCase, PolicyActor
from ace.stats import mean_interval

DRAWS = 5
"""Random actions simulated in each state: the mean for one proposal, the best of them for five."""


def rates(grid, whatif, textmap, client, states, settings, ranking, seed, unmasked=None):
    """`outcomes` as a table (of `tabled`, its intervals over states), and the model's records."""
    columns, records = outcomes(whatif, textmap, client, states, settings, ranking, seed, unmasked)
    return tabled(grid, columns), records


def tabled(grid, columns, groups=None):
    """Means of columns, {(proposer, metric): (n,) numbers or bool}, with 95 % intervals over states, or over groups
    (n,) of states: columns grid, proposer, metric, value, ci_low, ci_high, n_states."""
    return pd.DataFrame(
        {"grid": grid, "proposer": proposer, "metric": metric, **mean_interval(values, groups), "n_states": len(values)}
        for (proposer, metric), values in columns.items()
    )


def outcomes(whatif, textmap, client, states, settings, ranking, seed, unmasked=None):
    """What becomes of each proposer's proposals: ({(proposer, metric): (n,) numbers or bool, one for each state}, records).

    settings: config.settings.Refine; ranking: action ids, the most frequent label first; unmasked: the same model as a
    client that decodes without masks, for parse_unmasked and legal_unmasked, or None; records: the model's, masked.
    A proposal improves if it gains more reward over doing nothing than the margin, both simulated. Every proposer gets the
    same states; rates are of all states, whatever became of a reply.
    """
    catalogue, rng = textmap.catalogue, np.random.default_rng([seed, 5])
    nothing = [whatif.simulate(state, 0).reward for state in states]

    def improves(i, action):
        return whatif.simulate(states[i], int(action)).reward > nothing[i] + settings.margin

    def proposals(actor):
        """(refinements, first proposal of each state: a catalogue id, or None where it could not be read)."""
        refined = actor.refine([BadCase(i, state, 0, nothing[i]) for i, state in enumerate(states)], seed)
        first = actor.recorder.records[-actor.counts["proposals"] :][: len(states)]
        return refined, [getattr(textmap.parse_action(record["reply"]), "value", None) for record in first]

    actor = PolicyActor(client, textmap, whatif, settings)
    refined, actions = proposals(actor)
    legal_ids = [catalogue.legal_ids(catalogue.legality(s.topo, s.cooldown_sub, True)) for s in states]
    allowed = [set(ids.tolist()) for ids in legal_ids]
    legal = [a in ids for a, ids in zip(actions, allowed, strict=True)]
    columns = {
        ("model", "one_proposal"): [ok and improves(i, actions[i]) for i, ok in enumerate(legal)],
        ("model", "five_rounds"): [r is not None and r.improved for r in refined],
        ("model", "parse"): [a is not None for a in actions],
        ("model", "legal"): legal,
    }
    if unmasked:
        _, free = proposals(PolicyActor(unmasked, textmap, whatif, settings.model_copy(update={"rounds": 1})))
        columns["model", "parse_unmasked"] = [a is not None for a in free]
        columns["model", "legal_unmasked"] = [a in ids for a, ids in zip(free, allowed, strict=True)]
    # Where the model names no substation, one that it named in another state stands in.
    subs = [int(catalogue.sub[a]) for a in actions if a]
    for name in ("random_same_substation", "random"):
        hits = []
        for i, ids in enumerate(legal_ids):
            if name == "random":
                options = ids[ids > 0]
            else:
                sub = int(catalogue.sub[actions[i]]) if actions[i] else int(rng.choice(subs)) if subs else -1
                options = ids[catalogue.sub[ids] == sub]
            draws = rng.choice(options, size=DRAWS) if len(options) else []
            hits.append([improves(i, a) for a in draws] or [False])
        columns[name, "one_proposal"] = [float(np.mean(h)) for h in hits]
        columns[name, "five_rounds"] = [any(h) for h in hits]
    hits = []
    for i, ids in enumerate(allowed):
        hits.append([improves(i, a) for a in [a for a in ranking if a in ids][:DRAWS]] or [False])
    columns["frequency", "one_proposal"] = [h[0] for h in hits]
    columns["frequency", "five_rounds"] = [any(h) for h in hits]
    return columns, actor.recorder.records
