import functools
import tempfile
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from tqdm import tqdm
from ace import baselines, config, evaluate
from ace.experiment import Run
from ace.judged import Bench, SetArgmin, survival
from ace.replay import play_tasks
from ace.report.stats import estimate
from ace.rl.distribution import CatalogueDistribution
from ace.rl.policy import load_policy
COLUMNS = ['question', 'series', 'x', 'value', 'ci_low', 'ci_high', 'n']
POLICIES = ['sac', 'ace', 'random_refine', 'frequency_refine']
BETAS = [0.0, 0.25, 0.5]
SOFTNESS = 0.02
CLOSE = 0.01
BATCH = 64
MOST_HELD = 10

def diagnose(environment, labels, steps, decisions, states, seeds, output):
    torch.set_num_threads(1)
    bench = Bench(environment)
    trained = policies(bench)
    heldout = bench.met('validation', states)
    runs = short_runs(environment, decisions, heldout, seeds)
    rows = representation(bench, heldout, labels, steps, seeds)
    rows += credit(runs, heldout) + distribution(bench, trained, states)
    rows += mixing(runs) + exploration(bench, trained, heldout, runs)
    table = pd.DataFrame([[q, s, str(x), *rest] for q, s, x, *rest in rows], columns=COLUMNS)
    path = bench.root / output / 'diagnosis' / f'{environment}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format='%.6g', lineterminator='\n')
    return table

def policies(bench):
    folder = bench.root / 'results' / 'runs' / bench.environment
    return {v: [load_policy(folder / v / f'seed={s}' / 'policy.safetensors', bench.catalogue) for s in bench.params.seeds] for v in POLICIES if v in bench.params.grid.variants}

def row(question, series, x, matrix):
    matrix = np.asarray(matrix, dtype=float)
    return [question, series, x, *estimate([[matrix]], lambda means: means[..., 0]), matrix.size]

def representation(bench, heldout, labels, steps, seeds):
    most, kinds = (bench.settings.train.decisions, {'best action': False, 'rated set': True})
    lessons = bench.met('train', min(max(labels), most))
    rows, names = ([], ('fit', 'accuracy', 'regret in rho', 'survival'))
    cells = [(kind, n) for kind in kinds for n in sorted({min(n, len(lessons)) for n in labels})]
    jobs = [(kind, n, seed) for kind, n in cells for seed in range(seeds)]
    tasks = [(bench.environment, draw(lessons, n, seed), heldout, seed, steps, kinds[kind]) for kind, n, seed in jobs]
    found = play_tasks(imitation, tasks, 'imitate')
    for place, (kind, n) in enumerate(cells):
        of_seeds = found[place * seeds:(place + 1) * seeds]
        for name, matrix in zip(names, zip(*of_seeds, strict=True), strict=True):
            rows.append(row('representation', f'{name}: {kind}', n, matrix))
    nothing = [[j.rho[j.ids == 0][0] - j.rho.min() for j in heldout]]
    rows.append(row('representation', 'regret in rho: do nothing', 0, nothing))
    players = {'do nothing': baselines.DoNothing(), 'look-ahead': SetArgmin(bench), 'look-ahead, all actions': baselines.Greedy(bench.whatif, bench.settings.greedy.shortlist)}
    for name, agent in players.items():
        rows.append(row('representation', f'survival: {name}', 0, [survival(bench.world, agent)]))
    return rows

def draw(lessons, n, seed):
    return [lessons[i] for i in np.random.default_rng([seed, 19]).permutation(len(lessons))[:n]]

def imitation(environment, lessons, heldout, seed, steps, rated):
    torch.set_num_threads(1)
    bench = _bench(environment, config.load().model_dump_json())
    policy = imitate(bench, lessons, seed, steps, rated)
    fit = [float(np.mean(open_loop(bench, policy, lessons[:len(heldout)])[0]))]
    return (fit, *open_loop(bench, policy, heldout), survival(bench.world, evaluate.Policy(policy)))

@functools.lru_cache(maxsize=1)
def _bench(environment, params):
    return Bench(environment)

def imitate(bench, lessons, seed, steps, rated):
    learner, rng = (bench.learner(seed), np.random.default_rng([seed, 23]))
    optimiser = torch.optim.Adam(learner.policy.parameters(), lr=bench.settings.sac.lr)
    for _ in range(steps):
        batch = [lessons[i] for i in rng.integers(len(lessons), size=BATCH)]
        x, legal = (np.stack([j.x for j in batch]), np.stack([j.legal for j in batch]))
        labels = np.array([_label(j, rng) if rated else j.ids[j.rho.argmin()] for j in batch])
        loss = -learner.distribution(torch.from_numpy(x), legal).log_prob(labels).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return learner.deployed

def _label(judged, rng):
    p = np.exp(-(judged.rho - judged.rho.min()) / SOFTNESS)
    return rng.choice(judged.ids, p=p / p.sum())

def open_loop(bench, policy, heldout):
    actions = [policy.act(j.x, j.legal, None) for j in heldout]
    regret = np.array([bench.rho(j.state, [a])[0] - j.rho.min() for a, j in zip(actions, heldout, strict=True)])
    return (100.0 * (regret <= CLOSE), regret)

def short_runs(environment, decisions, heldout, seeds):
    series = [('sac', None), *((f'ace, beta {beta:g}', beta) for beta in BETAS)]
    jobs = [(beta, seed) for _, beta in series for seed in range(seeds)]
    tasks = [(environment, beta, seed, decisions, heldout) for beta, seed in jobs]
    done = play_tasks(short_run, tasks, 'short runs')
    return [(name, beta, done[i * seeds:(i + 1) * seeds]) for i, (name, beta) in enumerate(series)]

def short_run(environment, beta, seed, decisions, heldout):
    torch.set_num_threads(1)
    params = config.load()
    settings = params.settings('sac' if beta is None else 'ace')
    few = min(decisions, settings.train.decisions // 2)
    changes = {'train': settings.train.model_copy(update={'decisions': few, 'validate_every': max(few // 4, 1)})}
    if beta is not None:
        changes['buffers'] = settings.buffers.model_copy(update={'beta': beta})
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(params, settings.model_copy(update=changes), environment, seed, config.root(), Path(scratch))
        sac, d_llm = (run.learner.sac, run.learner.d_llm)
        hub = [[0, share_at_hub(sac.deployed, heldout)]]
        for event in run.learner.run():
            if event.kind == 'validation':
                hub.append([event.row['decisions'], share_at_hub(sac.deployed, heldout)])
    ids, counts = np.unique(d_llm.columns['action'][:len(d_llm)], return_counts=True)
    return {'q': [sac.q_values(j.x, j.ids) for j in heldout], 'hub': hub, 'every': run.settings.train.validate_every, 'held': ids[np.argsort(-counts, kind='stable')][:MOST_HELD], 'gain': d_llm.gain(), 'survival': survival(run.training, evaluate.Policy(sac.deployed))}

def credit(runs, heldout):
    held = [run['held'] for run in next((done for _, beta, done in runs if beta == BETAS[1]))]
    measures = {'rank correlation': lambda q, j, ids: spearman(q, j.rewards), 'regret of the best-rated': lambda q, j, ids: j.rewards.max() - j.rewards[q.argmax()], 'bias for D_LLM': lambda q, j, ids: bias_of(q, j.rewards, np.isin(j.ids, ids))}
    rows = []
    for series, _, done in runs:
        for name, of in measures.items():
            of_run = lambda run, ids, of=of: [of(q, j, ids) for q, j in zip(run['q'], heldout, strict=True)]
            rows.append(row('credit', name, series, list(map(of_run, done, held))))
    return rows

def spearman(a, b):
    a, b = (pd.Series(a).rank(), pd.Series(b).rank())
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0

def bias_of(q, rewards, held):
    if q.std() == 0 or held.all() or (not held.any()):
        return 0.0
    slope, intercept = np.polyfit(rewards, q, 1) if rewards.std() > 0 else (0.0, q.mean())
    residual = (q - slope * rewards - intercept) / q.std()
    return float(residual[held].mean() - residual[~held].mean())

def mixing(runs):
    rows = []
    for _, beta, done in runs:
        rows.append(row('mixing', 'survival', 'sac' if beta is None else beta, [run['survival'] for run in done]))
        if beta is not None:
            rows.append(row('mixing', 'rows of D_LLM', beta, [[len(run['gain'])] for run in done]))
            rows.append(row('mixing', 'gain of a row', beta, [[np.mean(run['gain']) if len(run['gain']) else 0.0] for run in done]))
    return rows

def distribution(bench, trained, states):
    untrained = [bench.learner(seed) for seed in bench.params.seeds]
    visitors = {'untrained': [functools.partial(sac.act, greedy=False) for sac in untrained]}
    visitors |= {v: [functools.partial(p.act, rng=None) for p in trained[v]] for v in ('sac', 'ace') if v in trained}
    rows = []
    for visitor, players in tqdm(visitors.items(), desc='visit'):
        met = [state for seed, act in enumerate(players) for state in bench.visited(act, seed)]
        chosen = np.random.default_rng([17, len(met)]).permutation(len(met))[:states]
        judged = [bench.judge(met[i]) for i in sorted(chosen)]
        for variant, all_seeds in trained.items():
            regret = np.array([[_regret(bench, p, j) for j in judged] for p in all_seeds])
            rows.append(row('distribution', f'regret: {variant}', visitor, regret))
        nothing = [[j.rewards.max() - j.rewards[j.ids == 0][0] for j in judged]]
        rows.append(row('distribution', 'regret: do nothing', visitor, nothing))
    return rows

def _regret(bench, policy, judged):
    return judged.rewards.max() - bench.whatif.simulate(judged.state, policy.act(judged.x, judged.legal, None)).reward

def exploration(bench, trained, heldout, runs):
    rows, train = ([], bench.settings.train)
    measures = {'effective actions': lambda c: np.exp(c['entropy']), 'do nothing': lambda c: 100 * (1 - c['acted'])}
    for variant, all_seeds in trained.items():
        folder = bench.root / 'results' / 'runs' / bench.environment / variant
        curves = [pd.read_csv(folder / f'seed={s}' / 'training.csv') for s in bench.params.seeds]
        at = range(train.validate_every, train.decisions + 1, train.validate_every)
        for name, of in measures.items():
            rows += curve(f'{name}: {variant}', at, [(c['decisions'], of(c)) for c in curves])
        ends = [[share_at_hub(policy, heldout)] for policy in all_seeds]
        rows.append(row('exploration', f'at the hub: {variant}', 'trained', ends))
    for series, _, done in runs:
        at = [0, *range(done[0]['every'], max(done[0]['hub'])[0] + 1, done[0]['every'])]
        rows += curve(f'at the hub, short run: {series}', at, [zip(*run['hub'], strict=True) for run in done])
    return rows

def curve(series, at, curves):
    values = np.stack([np.interp(at, *map(list, each)) for each in curves], axis=1)
    return [row('exploration', series, x, of_seeds[:, None]) for x, of_seeds in zip(at, values, strict=True)]

def share_at_hub(policy, heldout):
    logits = torch.from_numpy(np.stack([policy.logits(j.x) for j in heldout]))
    shares = CatalogueDistribution(policy.space, logits, np.stack([j.legal for j in heldout])).p_top[:, -1]
    return 100 * float(shares.mean())
