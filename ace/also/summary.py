"""What the Critic reads of the stage of training: nine percentages, no trajectory."""

from dataclasses import asdict, dataclass

import numpy as np
import torch

EPISODES = 8
"""Training episodes that survival is read from; as many before them are what it is compared with."""
DECISIONS = 200
"""Latest decisions that all else is read from."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All in percent, in steps of 5. survival, before: of the horizon, latest episodes and those before; blackouts: share of
    episodes that end in one; end: part of the horizon after which these come; overload: sum of overloads at a decision; lost:
    decisions with a line lost; moved: elements away from the reference topology; acting: decisions that are not do nothing;
    entropy: of the policy, 100 for one nat."""

    survival: int
    before: int
    blackouts: int
    end: int
    overload: int
    lost: int
    moved: int
    acting: int
    entropy: int


WORDS = {
    "survival": "survival", "before": "before", "blackouts": "blackouts", "end": "blackout after", "overload": "overload",
    "lost": "lines lost in", "moved": "topology moved", "acting": "acting in", "entropy": "entropy",
}  # fmt: skip
STEP, MOST = 5, 250
TURNS = [f"{words} : {value} %" for words in WORDS.values() for value in range(0, MOST + 1, STEP)]
"""All that a summary can say; a word each of the embedded model's language, as its names are."""


def summarise(learner, terms, episodes, horizon):
    """Summary of a run as it stands. learner: coevolve.CoEvolution after some episode; terms: Terms;
    episodes: [(steps, blackout)] of training, all so far; horizon: steps."""
    latest, earlier = episodes[-EPISODES:], episodes[-2 * EPISODES : -EPISODES] or episodes[-EPISODES:]
    c = learner.d_rl.columns
    slots = np.flatnonzero(c["is_decision"][: len(learner.d_rl)])
    slots = slots[np.argsort(learner.d_rl.uids(slots))][-DECISIONS:]
    measured = terms.measures(c["x"][slots])
    with torch.no_grad():
        entropy = learner.sac.distribution(torch.from_numpy(c["x"][slots]), c["legal"][slots]).entropy()
    blackouts = [steps for steps, blackout in latest if blackout]
    shares = {
        "survival": np.mean([steps - blackout for steps, blackout in latest]) / horizon,
        "before": np.mean([steps - blackout for steps, blackout in earlier]) / horizon,
        "blackouts": len(blackouts) / len(latest),
        "end": np.mean(blackouts) / horizon if blackouts else 1.0,
        "overload": measured[:, 1].mean(),
        "lost": (measured[:, 2] > 0).mean(),
        "moved": measured[:, 3].mean() / terms.dim_topo,
        "acting": (c["action"][slots] != 0).mean(),
        "entropy": float(entropy.mean()),
    }
    return Summary(**{name: percent(share) for name, share in shares.items()})


def percent(share):
    return min(max(STEP * round(100 * float(share) / STEP), 0), MOST)


def evidence(name, value):
    """One statistic in words, as the summary and the diagnosis have it."""
    return f"{WORDS[name]} : {value} %"


def text(summary):
    """T of a Summary: a line a statistic."""
    return "\n".join(evidence(name, value) for name, value in asdict(summary).items())
