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
    for variant in learned:
        _train_missing(params, environment, variant, params.seeds_of(variant))
    tasks = [(variant, 0, None) for variant in idle]
    return tasks + [
        (variant, seed, _found(environment, variant, seed)) for variant in learned for seed in params.seeds_of(variant)
    ]


def policy_or_again(params, environment, variant, seed):
    """Path below the root of the policy of one committed run, trained once more where git does not keep it. FileNotFoundError
    as of `tasks_of`."""
    _train_missing(params, environment, variant, [seed])
    return _found(environment, variant, seed)


def _found(environment, variant, seed):
    policy = policy_of(config.root(), environment, variant, seed)
    if policy is None:
        missing = cell_folder("results", environment, variant) / f"seed={seed}" / POLICY
        raise FileNotFoundError(f"no {missing}: its cell was not run, or by other code or on another kind of processor")
    return policy


def _train_missing(params, environment, variant, seeds):
    """Train, under checkpoints/, the policies that a cell has made and git does not keep."""
    missing = [
        (environment, variant, seed)
        for seed in sorted({*seeds_in(config.root() / cell_folder("results", environment, variant))} & {*seeds})
        if seed not in params.kept_seeds(environment, variant) and policy_of(config.root(), environment, variant, seed) is None
    ]
    if missing:
        play_tasks(_train, missing, f"policies of {environment} {variant} that git does not keep")


def _train(environment, variant, seed):
    root, params = config.root(), config.load()
    scratch = scratch_folder(root, "results", environment, variant) / f"seed={seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    with alone(scratch):
        Run(params, params.settings(variant), environment, seed, root, scratch).train()
