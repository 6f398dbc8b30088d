"""Diagnosis: why the learner learns what it does, in five measurements on training and validation scenarios alone.

    representation  can the policy network imitate the best action of the set, and how many labels does that take?
    credit          do the critics rank actions as the simulator does, and do they overrate those of D_LLM?
    distribution    how much worse than the best of the set are trained policies, where they go and where others go?
    mixing          what the share of D_LLM in a batch (beta) does to a short run
    exploration     over how many actions does the policy spread, and how much of it lies at the hub?

The *set* is the language model's set of actions (in its manifest); *best* is judged by the what-if engine. Trained policies come
from the run files, critics, which are not kept there, from short runs. All of it on the fast world; no test scenario.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from tqdm import tqdm

from ace import baselines, config
from ace.experiment import Run
from ace.rl.distribution import CatalogueDistribution
from ace.rl.policy import Policy, load_policy
from ace.run_files import cell_folder, frame, read_cell
from ace.stats import mean
from ace.studies.diagnosis.labelled_states import DiagnosisSetup, SetArgmin, survival
from ace.studies.policies import tasks_of
from ace.trained_policies import play_tasks

COLUMNS = ["question", "series", "x", "value", "ci_low", "ci_high", "n"]
BETAS = [0.0, 0.25, 0.5]
SOFTNESS = 0.02
"""Rated labels are drawn with probability exp(-rho_max / this): 2 % of the limit worse is e times as rare."""
CLOSE = 0.01
"""An action counts as right if the highest loading is at most this much above that after the best of the set."""
BATCH = 64
MOST_HELD = 10
"""Actions that D_LLM holds most often: those whose values may be biased."""


def diagnose(environment, labels, steps, decisions, states, seeds, output):
    """All five measurements; writes <output>/studies/diagnosis/<environment>.csv and returns it, a DataFrame with COLUMNS.

    labels: how many are imitated, at most as many as params.yaml has decisions; steps: of imitation
    decisions: of a short run, at most half of those of params.yaml
    states: held-out states, and states of each visitor; seeds: of imitation and of short runs. Raises ConfigError without
    the language model, FileNotFoundError without a trained policy.
    """
    torch.set_num_threads(1)
    bench = DiagnosisSetup(environment)
    trained = policies(bench)
    heldout = bench.met("validation", states)
    runs = short_runs(environment, decisions, heldout, seeds)
    rows = representation(bench, heldout, labels, steps, seeds)
    rows += credit(runs, heldout) + distribution(bench, trained, states)
    rows += mixing(runs) + exploration(bench, trained, heldout, runs)
    table = pd.DataFrame([[q, s, str(x), *rest] for q, s, x, *rest in rows], columns=COLUMNS)
    path = bench.root / output / "studies" / "diagnosis" / f"{environment}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return table


def policies(bench):
    """variant -> its trained policies, one a seed, of those that params.yaml declares for the diagnosis."""
    found = {}
    learned = bench.params.played("diagnosis", bench.environment)[1]
    for variant, _, policy in tasks_of(bench.params, bench.environment, [], learned):
        found.setdefault(variant, []).append(load_policy(bench.root / policy, bench.catalogue))
    return found


def row(question, series, x, matrix):
    """matrix: (S, E), seeds x states or scenarios -> one row of the table; n counts the cells."""
    matrix = np.asarray(matrix, dtype=float)
    return [question, series, x, *mean(matrix), matrix.size]


# --- 1: representation ------------------------------------------------------------------------------------------------


def representation(bench, heldout, labels, steps, seeds):
    """Imitation of the best action of the set by the policy network as SAC starts it, over the whole catalogue.

    fit and accuracy: percent of the labelled, and of held-out, states in which its action is within CLOSE of the best.
    """
    most, kinds = bench.settings.train.decisions, {"best action": False, "rated set": True}
    labelled = bench.met("train", min(max(labels), most))
    rows, names = [], ("fit", "accuracy", "regret in rho", "survival")
    cells = [(kind, n) for kind in kinds for n in sorted({min(n, len(labelled)) for n in labels})]
    jobs = [(kind, n, seed) for kind, n in cells for seed in range(seeds)]
    tasks = [(bench.environment, draw(labelled, n, seed), heldout, seed, steps, kinds[kind]) for kind, n, seed in jobs]
    found = play_tasks(imitation, tasks, "imitate")
    for place, (kind, n) in enumerate(cells):
        of_seeds = found[place * seeds : (place + 1) * seeds]
        for name, matrix in zip(names, zip(*of_seeds, strict=True), strict=True):
            rows.append(row("representation", f"{name}: {kind}", n, matrix))
    nothing = [[j.rho[j.ids == 0][0] - j.rho.min() for j in heldout]]
    rows.append(row("representation", "regret in rho: do nothing", 0, nothing))
    players = {
        "do nothing": baselines.DoNothing(),
        "look-ahead": SetArgmin(bench),
        "look-ahead, all actions": baselines.Greedy(bench.whatif, bench.settings.greedy.shortlist),
    }
    for name, agent in players.items():
        rows.append(row("representation", f"survival: {name}", 0, [survival(bench.world, agent)]))
    return rows


def draw(labelled, n, seed):
    """n of the labelled states, others for each seed."""
    return [labelled[i] for i in np.random.default_rng([seed, 19]).permutation(len(labelled))[:n]]


def imitation(environment, labelled, heldout, seed, steps, rated):
    """Imitate, then measure: fit in as many of the labelled states as there are held-out ones ([percent]), accuracy (N,)
    and regret (N,) in the held-out states, survival (E,) on the validation scenarios."""
    torch.set_num_threads(1)
    bench = _setup_of(environment, config.load().model_dump_json())
    policy = imitate(bench, labelled, seed, steps, rated)
    fit = [float(np.mean(open_loop(bench, policy, labelled[: len(heldout)])[0]))]
    return fit, *open_loop(bench, policy, heldout), survival(bench.world, Policy(policy))


@functools.lru_cache(maxsize=1)
def _setup_of(environment, params):
    """A process makes its grid once. params: what params.yaml says now, so that a changed one makes another."""
    return DiagnosisSetup(environment)


def imitate(bench, labelled, seed, steps, rated):
    """The policy after so many gradient steps on cross-entropy with the labels.

    rated: a label is drawn anew each time, the better the likelier; else it is the best action.
    """
    learner, rng = bench.learner(seed), np.random.default_rng([seed, 23])
    optimiser = torch.optim.Adam(learner.policy.parameters(), lr=bench.settings.sac.lr)
    for _ in range(steps):
        batch = [labelled[i] for i in rng.integers(len(labelled), size=BATCH)]
        x, legal = np.stack([j.x for j in batch]), np.stack([j.legal for j in batch])
        labels = np.array([_label(j, rng) if rated else j.ids[j.rho.argmin()] for j in batch])
        loss = -learner.distribution(torch.from_numpy(x), legal).log_prob(labels).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return learner.acting


def _label(labelled, rng):
    p = np.exp(-(labelled.rho - labelled.rho.min()) / SOFTNESS)
    return rng.choice(labelled.ids, p=p / p.sum())


def open_loop(bench, policy, heldout):
    """Of the policy's most probable action: whether it is within CLOSE of the set's best, (N,) percent, and the regret,
    (N,) in rho."""
    actions = [policy.act(j.x, j.legal, None) for j in heldout]
    regret = np.array([bench.rho(j.state, [a])[0] - j.rho.min() for a, j in zip(actions, heldout, strict=True)])
    return 100.0 * (regret <= CLOSE), regret


# --- 2 and 4: short runs ----------------------------------------------------------------------------------------------


def short_runs(environment, decisions, heldout, seeds):
    """[(series, beta or None, [what `short_run` gives, one a seed])]: plain SAC, then ACE with each of BETAS."""
    series = [("sac", None), *((f"ace, beta {beta:g}", beta) for beta in BETAS)]
    jobs = [(beta, seed) for _, beta in series for seed in range(seeds)]
    tasks = [(environment, beta, seed, decisions, heldout) for beta, seed in jobs]
    done = play_tasks(short_run, tasks, "short runs")
    return [(name, beta, done[i * seeds : (i + 1) * seeds]) for i, (name, beta) in enumerate(series)]


def short_run(environment, beta, seed, decisions, heldout):
    """Train SAC (beta None) or ACE with this beta; what its critics and its policy say of the held-out states."""
    torch.set_num_threads(1)
    params = config.load()
    settings = params.settings("sac" if beta is None else "ace")
    few = min(decisions, settings.train.decisions // 2)
    changes = {"train": settings.train.model_copy(update={"decisions": few, "validate_every": max(few // 4, 1)})}
    if beta is not None:
        changes["buffers"] = settings.buffers.model_copy(update={"beta": beta})
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(params, settings.model_copy(update=changes), environment, seed, config.root(), Path(scratch))
        learner, sac, d_llm = run.learner, run.learner.sac, run.learner.d_llm
        hub = [[0, share_at_hub(learner.policy, heldout)]]
        for event in learner.run():
            if event.kind == "validation":
                hub.append([event.row["decisions"], share_at_hub(learner.policy, heldout)])
    ids, counts = np.unique(d_llm.columns["action"][: len(d_llm)], return_counts=True)
    return {
        "q": [sac.q_values(j.x, j.ids) for j in heldout],
        "hub": hub,
        "every": run.settings.train.validate_every,
        "held": ids[np.argsort(-counts, kind="stable")][:MOST_HELD],
        "gain": d_llm.gain(),
        "survival": survival(run.training, Policy(learner.policy)),
    }


def credit(runs, heldout):
    """How the critics of short runs order the set's actions in held-out states, against the simulated reward.

    bias: how much higher, in standard deviations of Q within a state, the critic rates D_LLM's most frequent actions than
    others that the simulator finds equal. The same actions in all series: SAC and beta 0 never learn from D_LLM
    and show what is no bias of its making.
    """
    held = [run["held"] for run in next(done for _, beta, done in runs if beta == BETAS[1])]
    measures = {
        "rank correlation": lambda q, j, ids: rank_correlation(q, j.rewards),
        "regret of the best-rated": lambda q, j, ids: j.rewards.max() - j.rewards[q.argmax()],
        "bias for D_LLM": lambda q, j, ids: bias_of(q, j.rewards, np.isin(j.ids, ids)),
    }
    rows = []
    for series, _, done in runs:
        for name, of in measures.items():
            of_run = lambda run, ids, of=of: [of(q, j, ids) for q, j in zip(run["q"], heldout, strict=True)]  # noqa: E731
            rows.append(row("credit", name, series, list(map(of_run, done, held))))
    return rows


def rank_correlation(a, b):
    """Spearman's; 0 where either is constant."""
    return float(spearmanr(a, b).statistic) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def bias_of(q, rewards, held):
    """Mean residual of `held` actions less that of the others, of a straight line of q on rewards, in units of q's standard
    deviation; 0 where nothing can be compared."""
    if q.std() == 0 or held.all() or not held.any():
        return 0.0
    slope, intercept = np.polyfit(rewards, q, 1) if rewards.std() > 0 else (0.0, q.mean())
    residual = (q - slope * rewards - intercept) / q.std()
    return float(residual[held].mean() - residual[~held].mean())


def mixing(runs):
    """What short runs came to, by beta; at beta 0 D_LLM is filled and never drawn from."""
    rows = []
    for _, beta, done in runs:
        rows.append(row("mixing", "survival", "sac" if beta is None else beta, [run["survival"] for run in done]))
        if beta is not None:
            rows.append(row("mixing", "rows of D_LLM", beta, [[len(run["gain"])] for run in done]))
            # one number a run, as runs hold different numbers of rows
            rows.append(
                row(
                    "mixing",
                    "gain of a row",
                    beta,
                    [[np.mean(run["gain"]) if len(run["gain"]) else 0.0] for run in done],
                )
            )
    return rows


# --- 3: distribution --------------------------------------------------------------------------------------------------


def distribution(bench, trained, states):
    """One-step regret, simulated reward of the best of the set less that of the policy's action, by who met the states.

    Visitors: the policy before training (sampled, as it acts then), and the trained policies of sac and ace.
    """
    untrained = [bench.learner(seed) for seed in bench.params.seeds]
    visitors = {"untrained": [functools.partial(sac.act, greedy=False) for sac in untrained]}
    visitors |= {v: [functools.partial(p.act, rng=None) for p in trained[v]] for v in ("sac", "ace") if v in trained}
    rows = []
    for visitor, players in tqdm(visitors.items(), desc="visit"):
        met = [state for seed, act in enumerate(players) for state in bench.visited(act, seed)]
        chosen = np.random.default_rng([17, len(met)]).permutation(len(met))[:states]
        labelled = [bench.label(met[i]) for i in sorted(chosen)]
        for variant, all_seeds in trained.items():
            regret = np.array([[_regret(bench, p, j) for j in labelled] for p in all_seeds])
            rows.append(row("distribution", f"regret: {variant}", visitor, regret))
        nothing = [[j.rewards.max() - j.rewards[j.ids == 0][0] for j in labelled]]
        rows.append(row("distribution", "regret: do nothing", visitor, nothing))
    return rows


def _regret(bench, policy, labelled):
    return labelled.rewards.max() - bench.whatif.simulate(labelled.state, policy.act(labelled.x, labelled.legal, None)).reward


# --- 5: exploration ---------------------------------------------------------------------------------------------------


def exploration(bench, trained, heldout, runs):
    """From the learning curves: effective number of actions, exp(entropy), and share of decisions to do nothing. From
    short runs and trained policies: the probability of acting at the hub in held-out states."""
    rows, train = [], bench.settings.train
    measures = {"effective actions": lambda c: np.exp(c["entropy"]), "do nothing": lambda c: 100 * (1 - c["acted"])}
    for variant, all_seeds in trained.items():
        cell = read_cell(cell_folder(bench.root / "results", bench.environment, variant))
        curves = [frame(cell[s].training) for s in bench.params.seeds_of(variant)]
        at = range(train.validate_every, train.decisions + 1, train.validate_every)
        for name, of in measures.items():
            rows += curve(f"{name}: {variant}", at, [(c["decisions"], of(c)) for c in curves])
        ends = [[share_at_hub(policy, heldout)] for policy in all_seeds]
        rows.append(row("exploration", f"at the hub: {variant}", "trained", ends))
    for series, _, done in runs:
        at = [0, *range(done[0]["every"], max(done[0]["hub"])[0] + 1, done[0]["every"])]
        rows += curve(f"at the hub, short run: {series}", at, [zip(*run["hub"], strict=True) for run in done])
    return rows


def curve(series, at, curves):
    """Rows of curves (decisions, values), one a seed, at common decisions: seeds are validated at some of their own."""
    values = np.stack([np.interp(at, *map(list, each)) for each in curves], axis=1)
    return [row("exploration", series, x, of_seeds[:, None]) for x, of_seeds in zip(at, values, strict=True)]


def share_at_hub(policy, heldout):
    """Percent of a deployed policy's probability at the hub, mean over the states."""
    logits = torch.from_numpy(np.stack([policy.logits(j.x) for j in heldout]))
    shares = CatalogueDistribution(policy.space, logits, np.stack([j.legal for j in heldout])).p_top[:, -1]
    return 100 * float(shares.mean())
