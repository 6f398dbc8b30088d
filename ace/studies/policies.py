"""The policies that studies play: of committed runs, trained once more where git does not keep them (`grid.kept`)."""

from ace import config
from ace.config.files import alone
from ace.experiment import Run, scratch_folder
from ace.run_files import POLICY, cell_folder, seeds_in
from ace.trained_policies import play_tasks, policy_of


def tasks_of(params, environment, idle, learned):
    """All runs of the baselines `idle` and the learned variants: list of (variant, seed, path of the policy or None).

    Policies of committed runs that git does not keep are trained once more. FileNotFoundError for a run that was not made, or
    whose training gives another policy here.
    """
    train_missing(params, environment, learned)
    tasks = [(variant, 0, None) for variant in idle]
    return tasks + [
        (variant, seed, _found(environment, variant, seed)) for variant in learned for seed in params.seeds_of(variant)
    ]


def policy_or_again(params, environment, variant, seed):
    """Path below the root of the policy of one committed run, trained once more where git does not keep it. FileNotFoundError
    as of `tasks_of`."""
    kept = seed in params.kept_seeds(environment, variant)
    if not kept and policy_of(config.root(), environment, variant, seed) is None:
        play_tasks(_train, [(environment, variant, seed)], f"policy of {environment} {variant} seed {seed}, not in git")
    return _found(environment, variant, seed)


def _found(environment, variant, seed):
    policy = policy_of(config.root(), environment, variant, seed)
    if policy is None:
        missing = cell_folder("results", environment, variant) / f"seed={seed}" / POLICY
        raise FileNotFoundError(f"no {missing}: its cell was not run, or by other code or on another kind of processor")
    return policy


def train_missing(params, environment, learned):
    """Train, under checkpoints/, the policies that cells of these variants have made and git does not keep."""
    missing = [
        (environment, variant, seed)
        for variant in learned
        for seed in set(seeds_in(config.root() / cell_folder("results", environment, variant))) & set(params.seeds_of(variant))
        if seed not in params.kept_seeds(environment, variant) and policy_of(config.root(), environment, variant, seed) is None
    ]  # fmt: skip
    if missing:
        play_tasks(_train, missing, f"policies of {environment} that git does not keep")


def _train(environment, variant, seed):
    root, params = config.root(), config.load()
    scratch = scratch_folder(root, "results", environment, variant) / f"seed={seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    with alone(scratch):
        Run(params, params.settings(variant), environment, seed, root, scratch).train()
