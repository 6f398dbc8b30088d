"""What a verdict follows from: the sign and the size of an estimate with its interval. The same rules for every claim."""

from dataclasses import replace

import numpy as np

from ace import stats

VERDICTS = ("reproduced", "partly", "contradicted", "inconclusive", "not tested")


def judge(estimate, size, null=0.0, reached=None):
    """The verdict of a comparison; the estimate is oriented so that the paper's sign is "above null", size >= null.

    reproduced: the interval lies above null and the value reaches size (or reached, the claim's own criterion, is met). partly:
    only the former, even where the interval ends below size. contradicted: the interval does not lie above null, and lies
    wholly below size (half of the paper's). inconclusive: it includes both null and size. not tested: there is no interval.
    """
    if not np.isfinite([*estimate]).all():
        return "not tested"
    if estimate.low > null:
        return "reproduced" if (estimate.value >= size if reached is None else reached) else "partly"
    return "contradicted" if estimate.high < size else "inconclusive"


def judge_range(estimates, low, high):
    """The verdict on a number that is to lie in a range, one estimate for each environment.

    reproduced: every interval lies in it. partly: some do. contradicted: all lie outside. inconclusive: none of these.
    not tested: there is no interval.
    """
    if not np.isfinite([[*each] for each in estimates]).all():
        return "not tested"
    inside = sum(low <= each.low and each.high <= high for each in estimates)
    if inside:
        return "reproduced" if inside == len(estimates) else "partly"
    return "contradicted" if all(each.high < low or each.low > high for each in estimates) else "inconclusive"


def judge_all(each, together, size):
    """(estimate, verdict) of several comparisons that all have to hold: the smallest is judged (`stats.smallest`).

    An interval of the smallest is too short where several are alike (known issue 4), so together is shown: the comparison with
    the mean of the variants, fixed in advance. p and the detectable effect are of the one with the smallest lower end.
    """
    least = stats.smallest(each)
    return replace(least, value=together.value, low=together.low, high=together.high), judge(least, size)
