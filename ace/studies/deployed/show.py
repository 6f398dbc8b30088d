"""The best policy of a grid as a ready agent, and its card: what it was trained on, survives, harms, and takes to answer.

Chosen among all runs of the grid that learned, ablations and budget curves included, by validation alone (RULE): the test is told
of the one that was chosen. `ace.deploy.grid_agent` plays it.
"""

import json
import math
import shutil

from ace import config
from ace.config.files import json_text, written_whole
from ace.deploy import DEPLOYED
from ace.report.formatting import markdown, rounded, thousands, write_text
from ace.report.harm import BASE, loss_and_gain, weights
from ace.report.labels import grid_label, label
from ace.report.runs import AFTER_THE_TEST, ReportError, read_cells, target
from ace.run_files import POLICY, policy_digest
from ace.studies.policies import policy_or_again
from ace.trained_policies import policy_of

RULE = "highest mean survival on the validation scenarios, then highest mean reward, then first in the grid's order, lowest seed"
USED = ("env_steps", "simulator_calls", "dc_calls", "llm_calls")
CARD = """# The deployed policy of {grid}

{facts}
The choice saw no test scenario. Its validation survival is the best of {n_runs} runs and therefore too high; its test survival is
of one seed: the main table and the budget curves compare methods over all of theirs. *Run used* counts training, validation,
LLM-ALSO's branches, and the corpus of the language model or of its set of actions.

## Play it

```python
from ace.deploy import grid_agent
agent = grid_agent("{env}")
observation, reward, done, info = agent.env.step(agent.act(agent.env.reset(), 0.0))
```

The same under Grid2Op's Runner, on the first training scenario and two steps more than its horizon:

```python
from grid2op.Runner import Runner
runner = Runner(**agent.env.get_params_for_runner(), agentClass=None, agentInstance=agent)
runner.run(nb_episode=1, env_seeds=[0])
```
"""


def write_deployed(params, environment):
    """Writes results/deployed/<environment>/ in the workspace: policy.safetensors, card.json, card.md. Returns what card.json
    says.

    Raises ReportError, one line, where a run is missing, where the chosen one is of an environment that is declared otherwise
    now (the policy would see other inputs), or its policy is not there and can't be trained once more.
    """
    root = config.root()
    runs = read_runs(params, root / "results", environment)
    variant, run = ranked(runs, environment)[0]
    policy, folder = _policy(params, environment, variant, run), root / DEPLOYED / environment
    folder.mkdir(parents=True, exist_ok=True)
    if policy != folder / POLICY:
        with written_whole(folder / POLICY) as partial:
            shutil.copyfile(policy, partial)
    told = about(params, runs, environment, variant, run)
    write_text(folder / "card.json", json_text(told))
    write_text(folder / "card.md", card(told))
    return told


# --- the choice -------------------------------------------------------------------------------------------------------


def read_runs(params, results, environment):
    """report.runs.Runs of all learned variants that are run there, each of which acts alone, and of reconnection alone."""
    there = [variant for _, env, variant in params.grid.cells if env == environment]
    learned = [variant for variant in there if params.settings(variant).method == "sac"]
    if not learned:
        raise ReportError(f"grid in params.yaml trains nothing on {environment}: no policy to choose from")
    return read_cells(params, results, [(environment, name) for name in there if name == BASE or name in learned])


def ranked(runs, environment):
    """[(variant, its run)] of all of `runs` that learned, the best by RULE first."""
    found = [
        (variant, run)
        for variant in runs.methods_of(environment)
        for run in sorted(runs.of(environment, variant), key=lambda run: run.seed)
        if run.training is not None
    ]
    return sorted(
        found, key=lambda each: [-each[1].manifest["best_validation"][key] for key in ("survival", "reward_mean")]
    )


def _policy(params, environment, variant, run):
    """Path of a run's policy: deployed already, of its cell or its training, or trained once more; ReportError."""
    root, noted = config.root(), run.manifest["policy_sha256"]
    remedy = f"run `dvc repro {target(params, environment, variant)}`"

    def differs(key, declared):
        return run.manifest[key] != json.loads(json.dumps(declared))

    if differs("environment", params.environment(environment).without_making()):
        raise ReportError(f"{run.folder} was trained in another environment than params.yaml has now: {remedy}")
    deployed = root / DEPLOYED / environment / POLICY
    if deployed.is_file() and policy_digest(deployed) == noted:
        return deployed
    kept = policy_of(root, environment, variant, run.seed)
    if kept is None and differs("settings", params.settings(variant).as_recorded()):
        raise ReportError(
            f"{run.folder} keeps no policy, and params.yaml has other settings of {variant} now: {remedy}"
        )
    try:
        found = root / (kept or policy_or_again(params, environment, variant, run.seed))
    except FileNotFoundError as error:
        raise ReportError(f"{error}; {remedy}") from None
    if policy_digest(found) != noted:
        raise ReportError(
            f"{found.relative_to(root)} is another policy than the manifest beside it notes: `git checkout` it"
        )
    return found


# --- the card ---------------------------------------------------------------------------------------------------------


def about(params, runs, environment, variant, run):
    """What card.json says. best_validation in shares of the horizon, test survival in percent, loss and gain in points, latency
    in ms; None where one is not known."""
    spec, survival = params.environment(environment), run.episodes["survival"].to_numpy(float)
    before = [used for phase, used in run.manifest["budget"].items() if phase not in ("test", *AFTER_THE_TEST)]
    learned = [name for name in runs.methods_of(environment) if name != BASE]
    noted = run.provenance or {}
    return {
        "environment": environment,
        "grid2op": spec.grid2op,
        "thermal_factor": spec.thermal_factor,
        "opponent": spec.opponent,
        "horizon": spec.horizon,
        "scale": runs.scale,
        "variant": variant,
        "seed": run.seed,
        "rule": RULE,
        "chosen_among": {"variants": learned, "runs": sum(len(runs.of(environment, name)) for name in learned)},
        "trained_on": {
            "what": "weeks" if spec.weeks else "resampled scenarios",
            "number": max(round(run.manifest["settings"]["train"]["share"] * params.scenarios.train), 1),
            "decisions": run.manifest["decisions"],
            "checkpoint": int(run.checkpoint["decisions"]),
            **{name: sum(used.get(name, 0) for used in before) for name in USED},
        },
        "validation": {**run.manifest["best_validation"], "scenarios": params.scenarios.validation},
        "test": {"survival": 100 * survival.mean(), "episodes": len(survival), "what": runs.test(), "seeds": 1},
        "harm": harm(runs, environment, variant, run.seed),
        "decision_latency_ms": noted.get("decision_latency_ms"),
        "commit": noted.get("commit"),
        "cpu": noted.get("cpu"),
        "policy_sha256": run.manifest["policy_sha256"],
    }


def harm(runs, environment, variant, seed):
    """Loss where reconnection alone survives and gain elsewhere, of this seed, in points (`report/harm.py`); None where that is
    not known. surviving: in how many test episodes it does, a sum of shares of the opponent's draws."""
    p = weights(runs, environment) if (environment, BASE) in runs.cells else None
    if p is None:
        return None
    base = runs.scores(environment, BASE, "survival")[0]
    found = loss_and_gain(runs.scores(environment, variant, "survival", [seed]), base, p)
    loss, gain = (None if math.isnan(value) else float(value) for (value,) in found)
    return {"surviving": float(p.sum()), "loss": loss, "gain": gain}


def card(told):
    """card.md"""
    trained, validation, test, found = (told[key] for key in ("trained_on", "validation", "test", "harm"))
    names = ("environment steps", "simulator calls", "DC calls", "LLM calls")
    among, latency = told["chosen_among"], told["decision_latency_ms"]
    facts = {
        "Policy": f"{label(told['variant'])} (`{told['variant']}`), seed {told['seed']}, scale {told['scale']}",
        "Grid": f"`{told['grid2op']}`, thermal limits times {told['thermal_factor']:g}, "
        f"{'an opponent cuts lines' if told['opponent'] else 'no opponent'}, {told['horizon']} steps of 5 minutes an episode",
        "Chosen": f"of {among['runs']} runs of {len(among['variants'])} methods: {told['rule']}",
        "Trained on": f"{trained['number']} {trained['what']}; checkpoint after {thousands(trained['checkpoint'])} of "
        f"{thousands(trained['decisions'])} decisions",
        "Run used": ", ".join(f"{thousands(trained[key])} {name}" for key, name in zip(USED, names, strict=True)),
        "Survives, validation": f"{100 * validation['survival']:.1f} % of the horizon, {validation['scenarios']} scenarios",
        "Survives, test": f"{test['survival']:.1f} % of the horizon, {test['what']}, this one seed",
        "Minus reconnection": "not known" if found is None else _minus_reconnection(found, test["episodes"]),
        "Latency": f"{'not noted' if latency is None else f'{latency:.2f} ms'} a decision, without simulator or language model"
        + (f" ({told['cpu']})" if told["cpu"] else ""),
        "Weights": f"`{POLICY}`, float16, digest `{told['policy_sha256'][:16]}`, run at commit {told['commit'] or 'not noted'}",
    }
    text = markdown(["", ""], [[f"**{name}**", fact] for name, fact in facts.items()])
    return CARD.format(grid=grid_label(told["environment"]), facts=text, n_runs=among["runs"], env=told["environment"])


def _minus_reconnection(found, episodes):
    """A part without episodes is left out."""
    where = f"where that survives (weight {found['surviving']:.3g} of {episodes} episodes)"
    parts = {where: found["loss"] and -found["loss"], "elsewhere": found["gain"]}
    told = [f"{rounded(value, 1, '+')} points {which}" for which, value in parts.items() if value is not None]
    return ", ".join(told)
