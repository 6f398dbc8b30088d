import numpy as np
from ace.report.ablations import NOT_RUN
from ace.report.typeset import with_interval
COLLAPSED = 0.1
FALLEN = 10.0

def sign(estimate):
    if not np.isfinite(estimate).all():
        return 0
    return int(estimate.low > 0) - int(estimate.high < 0)

def words(estimate):
    return f"{with_interval(*estimate, 1, sign='+')} points"

def told(name, estimate):
    if estimate is None:
        return f'{name}: {NOT_RUN}'
    verdict = {1: 'above 0', -1: 'below 0', 0: 'not told apart from 0'}[sign(estimate)]
    return f'{name} {words(estimate)}, {verdict}'

def _sentence(lead, found, names):
    return f"{lead}: {'; '.join((told(name, found[name]) for name in names))}."

def answer_1(found):
    text, gap = (found['described - bare index'], found['reward - action, described'])
    if text is None:
        return f'Nothing can be said: {NOT_RUN}.'
    if sign(text) > 0:
        closed = gap is not None and sign(gap) <= 0
        lead = 'Yes, the description closes the gap' if closed else 'Partly, the description helps'
    else:
        lead = 'No, the description costs survival' if sign(text) < 0 else 'It is not seen that the description helps'
    return _sentence(lead, found, ['described - bare index', 'reward - action, described'])

def answer_2(found):
    names = [name for name in found if name.startswith('five rounds - ')]
    signs = {name.removeprefix('five rounds - '): sign(found[name]) for name in names if found[name] is not None}
    if not signs:
        return f'Nothing can be said: {NOT_RUN}.'
    worse, same = ([name for name, s in signs.items() if (s > 0) == lost] for lost in (True, False))
    lead = f"It matters: five rounds survive longer than {' and '.join(worse)}" if worse else 'It is not seen to matter'
    if worse and same:
        lead += f", that they do longer than {' or '.join(same)} is not seen"
    spent = {name.removesuffix(': calls'): each for name, each in found.items() if name.endswith(': calls') and each}
    calls = ', '.join((f'{name} {each.value:,.0f}' for name, each in spent.items()))
    return f"{lead} (simulator calls in training: {calls}); {'; '.join((told(name, found[name]) for name in names))}."

def answer_3(found):
    entropy, fall, gain = (found[name] for name in ('entropy at the end', 'best - last validation', 'ACE - SAC, sparse'))
    if entropy is None or fall is None:
        return f'Nothing can be said: {NOT_RUN}.'
    low, high = _ends(entropy)
    state = 'collapsed' if high < COLLAPSED else 'did not collapse' if low > COLLAPSED else 'collapsed in some runs'
    if low > COLLAPSED and fall.value < FALLEN:
        lead = 'Yes, training stays stable'
        lead += ", but ACE's lead over SAC is not seen" if gain is not None and sign(gain) <= 0 else ''
    elif high < COLLAPSED or _ends(fall)[0] >= FALLEN:
        lead = 'No, training does not stay stable'
    else:
        lead = 'Only in part'
    more = '; '.join((told(name, found[name]) for name in ('ACE - SAC, sparse', 'ACE, sparse - dense')))
    return f"{lead}: the entropy {state} (it ends at {entropy.value:.2f} of SAC's target), the last validation lies {fall.value:.1f} points below the best; {more}."

def _ends(estimate):
    ends = (estimate.low, estimate.high)
    return ends if np.isfinite(ends).all() else (estimate.value, estimate.value)

def answer_4(found):
    alone = {role: found[f'{role} alone - neither'] for role in ('f_LLM', 'g_LLM')}
    if None in alone.values():
        return f'Nothing can be said: {NOT_RUN}.'
    helping = [role for role, estimate in alone.items() if sign(estimate) > 0]
    lead = f"From {' and '.join(helping)}" if helping else 'From neither that these runs can tell'
    return _sentence(lead, found, [*(f'{role} alone - neither' for role in alone), 'both - f_LLM alone'])

def answer_5(found):
    pooled = found['g_LLM - random, mean over K']
    leads = {1: 'Credit assignment', -1: 'Worse than noise', 0: 'Not told apart from noise'}
    lead = f'No answer over all K ({NOT_RUN})' if pooled is None else leads[sign(pooled)]
    return _sentence(lead, found, ['g_LLM - random, mean over K', 'g_LLM - no shaping'])

def answer_6(found):
    names = ['half: ACE, often - SAC', 'ACE, often: all - half']
    ahead, lost = (found[name] for name in names)
    if ahead is None or lost is None:
        lead = f'No answer about scenarios ({NOT_RUN})'
    elif sign(ahead) > 0:
        lead = f"Yes, trained on half of the scenarios ACE stays ahead of SAC{(', at a loss' if sign(lost) > 0 else '')}"
    else:
        lead = 'Trained on half of the scenarios, ACE is not seen ahead of SAC'
    return _sentence(lead, found, [*names, *(name for name in found if name.startswith('outages'))])
