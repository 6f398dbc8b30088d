"""How an answer follows from the intervals, to an open question or of a figure of the ablations: in generated sentences.

Written down before the runs; changed afterwards: 3 also says how far its interval reaches, 6 all losses and the controls with a
line out. An effect is significant where its 95 % interval excludes 0. Every answer_<n> takes {name of a contrast: Estimate, or
None where it was not run} and gives a sentence or two.
"""

import numpy as np

from ace import stats
from ace.report.ablations import NOT_RUN
from ace.report.formatting import with_interval

COLLAPSED = 0.1  # our reading: the policy's entropy ends below this share of what SAC aims at (sac.target_entropy)
CORPUS = "the corpus"  # these two: in the names of contrasts
OUTAGES = "outages: "
FALLEN = 10.0  # our reading: training is unstable where the last validation is this many points below the best


def sign(estimate):
    """`stats.sign` of an Estimate."""
    return stats.sign(estimate.low, estimate.high)


def words(estimate):
    """+3.2 [-1.0, +7.4] points."""
    return f"{with_interval(*estimate, 1, sign='+')} points"


def described(name, estimate):
    """A contrast in half a sentence."""
    if estimate is None:
        return f"{name}: {NOT_RUN}"
    return f"{name} {words(estimate)}, {stats.describe_interval(estimate.low, estimate.high)}"


def _sentence(lead, found, names):
    """The lead and the contrasts that it rests on."""
    return f"{lead}: {'; '.join(described(name, found[name]) for name in names)}."


def answer_1(found):
    text, gap = found["described minus bare index"], found["reward minus action (described)"]
    if text is None:
        return f"Nothing can be said: {NOT_RUN}."
    if sign(text) > 0:
        closed = gap is not None and sign(gap) <= 0
        lead = "Yes, the description closes the gap" if closed else "Partly, the description helps"
    else:
        lead = "No, the description lowers survival" if sign(text) < 0 else "No significant effect of the description"
    return _sentence(lead, found, ["described minus bare index", "reward minus action (described)"])


def answer_2(found):
    names = [name for name in found if name.startswith("five rounds minus ")]
    signs = {name.removeprefix("five rounds minus "): sign(found[name]) for name in names if found[name] is not None}
    if not signs:
        return f"Nothing can be said: {NOT_RUN}."
    if set(signs) == {"none"}:  # LLM4Teach, which differs in more than the rounds
        return _sentence("Not answered: fewer rounds of the same method were not run", found, names)
    worse, same = ([name for name, s in signs.items() if (s > 0) == lost] for lost in (True, False))
    lead = f"It matters: five rounds survive longer than {' and '.join(worse)}" if worse else "No significant difference"
    if worse and same:
        lead += f", but not significantly longer than {' or '.join(same)}"
    spent = {name.removesuffix(": calls"): each for name, each in found.items() if name.endswith(": calls") and each}
    shared = spent.pop(CORPUS, None)
    calls = ", ".join(f"{name} {each.value:,.0f}" for name, each in spent.items())
    if shared:
        calls += f", on top of the {shared.value:,.0f} of the language model's corpus, which all of them need"
    return f"{lead} (simulator calls in training: {calls}); {'; '.join(described(name, found[name]) for name in names)}."


def answer_3(found):
    entropy, fall, gain = (
        found[name] for name in ("entropy at the end", "best minus last validation", "ACE minus SAC (sparse)")
    )
    if entropy is None or fall is None:
        return f"Nothing can be said: {NOT_RUN}."
    low, high = _ends(entropy)
    state = "collapsed" if high < COLLAPSED else "did not collapse" if low > COLLAPSED else "collapsed in some runs"
    if low > COLLAPSED and fall.value < FALLEN:
        lead = "Yes, training stays stable"
        if _ends(fall)[1] >= FALLEN:
            lead += f" on average, but instability is not excluded (the interval of the fall reaches past {FALLEN:g} points)"
        lead += ", but ACE's lead over SAC is not significant" if gain is not None and sign(gain) <= 0 else ""
    elif high < COLLAPSED or _ends(fall)[0] >= FALLEN:
        lead = "No, training does not stay stable"
    else:
        lead = "Only in part"
    more = "; ".join(described(name, found[name]) for name in ("ACE minus SAC (sparse)", "ACE, sparse minus dense"))
    return (
        f"{lead}: the entropy {state} (it ends at {entropy.value:.2f} of SAC's target), the last validation is "
        f"{with_interval(*fall, 1)} points below the best; {more}."
    )


def _ends(estimate):
    """Of the interval; of a single run, which has none, the value itself twice."""
    ends = (estimate.low, estimate.high)
    return ends if np.isfinite(ends).all() else (estimate.value, estimate.value)


def answer_4(found):
    alone = {role: found[f"{role} alone minus neither"] for role in ("f_LLM", "g_LLM")}
    if None in alone.values():
        return f"Nothing can be said: {NOT_RUN}."
    helping = [role for role, estimate in alone.items() if sign(estimate) > 0]
    lead = f"From {' and '.join(helping)}" if helping else "Neither role alone has a significant effect"
    return _sentence(lead, found, [*(f"{role} alone minus neither" for role in alone), "both minus f_LLM alone"])


def answer_5(found):
    pooled = found["g_LLM minus random, mean over K"]
    leads = {1: "Credit assignment", -1: "Worse than noise", 0: "Not significantly different from noise"}
    lead = f"No answer over all K ({NOT_RUN})" if pooled is None else leads[sign(pooled)]
    return _sentence(lead, found, ["g_LLM minus random, mean over K", "g_LLM minus no shaping"])


def answer_6(found):
    halves = {how: found[f"ACE ({how}): all minus half"] for how in ("often", "seldom")}
    ahead = found["half: ACE (often) minus SAC"]
    if ahead is None or halves["often"] is None:
        lead = f"No answer about scenarios ({NOT_RUN})"
    elif sign(ahead) > 0:
        lost = [how for how, loss in halves.items() if loss is not None and sign(loss) > 0]
        lead = "Yes, trained on half of the scenarios ACE stays ahead of SAC"
        lead += f", at a loss where f_LLM is asked {' or '.join(lost)}" if lost else ""
    else:
        lead = "Trained on half of the scenarios, ACE is not significantly ahead of SAC"
    outages = {name.removeprefix(OUTAGES): each for name, each in found.items() if name.startswith(OUTAGES)}
    about = _sentence(lead, found, [name for name in found if not name.startswith(OUTAGES)])
    return f"{about} {_sentence('With a line out', outages, outages)}"


# --- figures ---


def against(found, reference):
    """Fig. 4: which variants differ from the reference. found: {name: Estimate of variant minus reference}."""
    if not found:
        return f"Nothing can be said: {NOT_RUN}."
    verdicts = {1: f"Significantly above {reference}", -1: f"Significantly below {reference}"}
    verdicts[0] = f"No significant difference to {reference}"
    lines = []
    for kind, lead in verdicts.items():
        names = [f"{name} ({words(each)})" for name, each in found.items() if sign(each) == kind]
        lines += [f"- {lead}: {'; '.join(names)}."] if names else []
    return "\n".join(lines)


def halving(found):
    """What training on half of the scenarios changes. found: {name: Estimate of half minus all}."""
    if not found:
        return f"Nothing can be said: {NOT_RUN}."
    verdicts = {1: "a significant gain", -1: "a significant loss", 0: "not significant"}
    said = "; ".join(f"{name} {words(each)}, {verdicts[sign(each)]}" for name, each in found.items())
    return f"Half of the training scenarios minus all of them, survival in the test: {said}."


def trend(name, sweep, digits, difference=None):
    """From the smallest K to the largest; "" of fewer than two. sweep: {K: Estimate}.

    difference: Estimate of the last minus the first; without one the ends of sweep are the lowest and the highest seed.
    """
    if len(sweep) < 2:
        return ""
    (first, a), *_, (last, b) = sorted(sweep.items())
    more = "more" if b.value > a.value else "less"
    if difference is not None:
        verdict = f"the second minus the first is {words(difference)}, "
        verdict += stats.describe_interval(difference.low, difference.high)
    else:
        verdict = "overlap" if overlap(a, b) else f"do not overlap ({more} with a larger K; with few seeds that may be chance)"
        verdict = f"the ranges of their seeds {verdict}"
    means = [each.value for each in sweep.values()]
    ends = f"{a.value:.{digits}f} at K = {first:g} and {b.value:.{digits}f} at K = {last:g}"
    return f"**{name}**: {ends}; {verdict}. Over all K the means are between {min(means):.{digits}f} and {max(means):.{digits}f}."


def overlap(a, b):
    """Whether two intervals have a point in common."""
    return a.low <= b.high and b.low <= a.high


def overlapping(name, ours, control):
    """At how many K the seeds of two sweeps have a range in common; "" without a K that both have."""
    both = [overlap(ours[k], control[k]) for k in ours if k in control]
    return f"**{name}**: the ranges of the seeds overlap at {sum(both)} of {len(both)} K." if both else ""


def differing(name, differences):
    """How many of the differences of survival, one for each K, are significant; "" of none."""
    if not differences:
        return ""
    signs, values = [sign(each) for each in differences], [each.value for each in differences]
    counts = f"significant at {len(signs) - signs.count(0)} of {len(signs)} K, above 0 at {signs.count(1)}"
    return f"**{name}**: {counts} (means from {min(values):+.1f} to {max(values):+.1f} points)."
