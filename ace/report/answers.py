"""How the answer to an open question follows from the intervals of its contrasts.

An effect is significant where its 95 % interval excludes 0. Every answer_<n> takes {name of a contrast: Estimate, or None where
it was not run} and gives one phrase. The rules were written before the runs; changed afterwards: 2 leaves out LLM4Teach, which
differs in more than the rounds, and 3 also says how far its interval reaches.
"""

import numpy as np

from ace import stats
from ace.report.ablations import NOT_RUN

COLLAPSED = 0.1  # our reading: the policy's entropy ends below this share of what SAC aims at (sac.target_entropy)
FALLEN = 10.0  # our reading: training is unstable where the last validation is this many points below the best
ROUNDS = ("five rounds minus one", "five rounds minus three")


def sign(estimate):
    """`stats.sign` of an Estimate."""
    return stats.sign(estimate.low, estimate.high)


def answer_1(found):
    text, gap = found["described minus bare index"], found["reward minus action (described)"]
    if text is None:
        return NOT_RUN
    if sign(text) > 0:
        closed = gap is not None and sign(gap) <= 0
        return "Yes, the description closes the gap" if closed else "Partly, the description helps"
    return "No, the description lowers survival" if sign(text) < 0 else "No significant effect of the description"


def answer_2(found):
    signs = {name: sign(found[name]) for name in ROUNDS if found[name] is not None}
    if not signs:
        return NOT_RUN
    worse = [name.removeprefix("five rounds minus ") for name, s in signs.items() if s > 0]
    if not worse:
        return "No significant difference between one, three and five rounds"
    return f"Five rounds survive longer than {' and '.join(worse)}"


def answer_3(found):
    entropy, fall, gain = (
        found[name] for name in ("entropy at the end", "best minus last validation", "ACE minus SAC (sparse)")
    )
    if entropy is None or fall is None:
        return NOT_RUN
    low, high = _ends(entropy)
    if low > COLLAPSED and fall.value < FALLEN:
        lead = "Yes, training stays stable"
        if _ends(fall)[1] >= FALLEN:
            lead += f" on average, but instability is not excluded (the interval of the fall reaches past {FALLEN:g} points)"
        return lead + (", but ACE's lead over SAC is not significant" if gain is not None and sign(gain) <= 0 else "")
    if high < COLLAPSED or _ends(fall)[0] >= FALLEN:
        return "No, training does not stay stable"
    return "Only in part"


def _ends(estimate):
    """Of the interval; of a single run, which has none, the value itself twice."""
    ends = (estimate.low, estimate.high)
    return ends if np.isfinite(ends).all() else (estimate.value, estimate.value)


def answer_4(found):
    alone = {role: found[f"{role} alone minus neither"] for role in ("f_LLM", "g_LLM")}
    if None in alone.values():
        return NOT_RUN
    helping = [role for role, estimate in alone.items() if sign(estimate) > 0]
    return f"From {' and '.join(helping)}" if helping else "Neither role alone has a significant effect"


def answer_5(found):
    pooled = found["g_LLM minus random, mean over K"]
    answers = {1: "Credit assignment", -1: "Worse than noise", 0: "Not significantly different from noise"}
    return NOT_RUN if pooled is None else answers[sign(pooled)]


def answer_6(found):
    ahead = found["half: ACE (often) minus SAC"]
    if ahead is None:
        return NOT_RUN
    if sign(ahead) <= 0:
        return "Trained on half of the scenarios, ACE is not significantly ahead of SAC"
    return "Yes, trained on half of the scenarios ACE stays ahead of SAC"
