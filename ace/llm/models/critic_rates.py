"""How often g_LLM is right: the sign of its adjustments against what the simulator says would have happened otherwise.

It is compared with two levels of chance: a coin, and always giving the sign that is the more frequent one.
"""

import numpy as np

from ace.llm.models.samples import counterfactual
from ace.llm.text import Decision
from ace.llm.value_critic import ValueCritic, key_decisions
from ace.stats import mean_interval

SELECTIONS = ("reward", "state", "action")
THRESHOLDS = {"reward": 0.5, "state": 0.05, "action": 0.5}
"""Of the scores that are not the configured one: their scales differ, so one threshold can't serve all three."""


def critic_rows(whatif, textmap, client, episodes, actions, shape, n, seed, unmasked=None):
    """Rows {proposer, metric, value, ci_low, ci_high, n_states}: n_states is the number of decisions judged.

    episodes: lists of corpus.Visit from held-out scenarios; actions: ids of the set; shape: config.settings.Shape; n: key
    decisions of each selection at the most; unmasked: the model as a client without masks, or None. Metrics:
    critic_sign_<selection>[_index] of the proposers model, majority and random (a coin), and critic_parse[_unmasked];
    critic_sign is the selection and form that `shape` names. Intervals: 95 %, over episodes, since decisions of
    one episode are alike.
    """
    decided = [[Decision(v.state, v.action, v.reward, v.rho_after) for v in episode] for episode in episodes]
    keys = {}
    for select in SELECTIONS:
        threshold = shape.threshold if select == shape.select else THRESHOLDS[select]
        found = [(e, p) for e, episode in enumerate(decided) for p in key_decisions(episode, select, threshold)]
        keys[select] = found[:n]
    places = sorted(set().union(*keys.values()))
    truth = {(e, p): truth_of(whatif, episodes[e][p], actions) for e, p in places}
    rows = []
    if unmasked:
        replies = ValueCritic(unmasked, textmap, shape).judge([(decided[e], p) for e, p in places], seed)
        rows.append(_row("model", "critic_parse_unmasked", [bool(multiple) for multiple in replies], places))
    for describe in (True, False):
        critic = ValueCritic(client, textmap, shape.model_copy(update={"describe": describe}))
        replies = critic.judge([(decided[e], p) for e, p in places], seed)
        said = {place: multiple for place, multiple in zip(places, replies, strict=True) if multiple}
        form = "" if describe else "_index"
        rows.append(_row("model", f"critic_parse{form}", [place in said for place in places], places))
        for select, chosen in keys.items():
            judged = [place for place in chosen if place in said]
            if not judged:
                continue
            good = [truth[place] > 0 for place in judged]
            more = np.mean(good) >= 0.5
            right = {"model": [(said[place] > 0) == is_good for place, is_good in zip(judged, good, strict=True)],
                     "majority": [is_good == more for is_good in good]}  # fmt: skip
            names = [f"critic_sign_{select}{form}"] + ["critic_sign"] * (
                (select, describe) == (shape.select, shape.describe)
            )
            for name in names:
                rows += [_row(proposer, name, values, judged) for proposer, values in right.items()]
                rows.append({**_row("random", name, [0.5], [(0, 0)]), "n_states": len(judged)})
    return rows


def truth_of(whatif, visit, actions):
    """The counterfactual verdict on a decision, as the corpus labels it, but simulated with protections: -2, -1, 1, 2."""
    nothing = _after(whatif, visit.state, 0)
    if visit.action:
        return counterfactual(visit.action, _after(whatif, visit.state, visit.action), nothing, np.nan)
    after = [_after(whatif, visit.state, int(a)) for a in actions[visit.legal]]
    best = np.nanmin(after) if np.isfinite(after).any() else np.nan
    return counterfactual(0, nothing, nothing, best)


def _after(whatif, state, action):
    result = whatif.simulate(state, action)
    return np.nan if result.done else result.next_state.rho_max


def _row(proposer, metric, values, places):
    interval = mean_interval(values, [episode for episode, _ in places])
    return {"proposer": proposer, "metric": metric, **interval, "n_states": len(values)}
