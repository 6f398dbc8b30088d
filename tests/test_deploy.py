"""The deployed policy: chosen by validation alone, copied with its card, and played in three lines and under Grid2Op's Runner."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import run, small_params
from made_up_runs import change_episodes, change_manifest

from ace import config, evaluate
from ace.deploy import grid_agent
from ace.grid.environment import World
from ace.report.runs import ReportError, Runs
from ace.rl.policy import DeployedPolicy, load_policy
from ace.run_files import POLICY, policy_digest, read_cell, read_provenance
from ace.studies import policies
from ace.studies.deployed import show
from benchmarks import test_seconds

LEARNED = ["sac", "expert_sac"]
FOLDER = Path("results/deployed/case14")


def kept_nowhere(raw):
    raw["seeds"] = [0, 1]
    raw["environments"]["case14"]["thermal_factor"] = 0.8
    raw["base"]["operator"]["danger"] = 0.8  # more decisions in an episode
    raw["grid"].update(variants=LEARNED[:1], baselines=["reconnect"], kept={"variants": [], "seeds": []})
    raw["grid"]["ablations"].update(seeds=[0, 1], variants=LEARNED[1:])  # is among what is chosen from, too


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A workspace in which two learned variants and reconnection alone were run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "params.yaml").write_text(yaml.safe_dump(small_params(kept_nowhere)))
    for variant in ["reconnect", *LEARNED]:
        done = run(folder, variant)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def workspace(finished, tmp_path, monkeypatch):
    """A copy of it, the current folder."""
    shutil.copytree(finished, tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setenv("ACE_JOBS", "1")
    return tmp_path / "ws"


def deploy():
    return show.write_deployed(config.load(), "case14")


def left_by_training(folder, told):
    return folder / f"checkpoints/results/case14/{told['variant']}/seed={told['seed']}"


def one_line(error):
    said = str(error.value)
    assert "\n" not in said
    return said


# --- the choice ---


def made_up(**cells):
    """Runs on one grid. cells: variant -> {seed: (validation survival, mean reward)}."""

    def of(seed, survival, reward_mean):
        return SimpleNamespace(
            seed=seed,
            training=object(),
            manifest={"best_validation": {"survival": survival, "reward_mean": reward_mean}},
        )

    runs = {("g", name): [of(seed, *each) for seed, each in seeds.items()] for name, seeds in cells.items()}
    runs["g", "reconnect"] = [SimpleNamespace(seed=0, training=None, manifest={})]
    return Runs("quick", ["g"], ["reconnect", *cells], runs)


@pytest.mark.parametrize(
    ("cells", "chosen"),
    [
        ({"a": {0: (0.5, 0.9), 1: (0.6, 0.1)}, "b": {0: (0.55, 1.0)}}, ("a", 1)),
        ({"a": {0: (1.0, 0.2), 1: (1.0, 0.3)}, "b": {0: (1.0, 0.4), 1: (0.9, 0.9)}}, ("b", 0)),
        ({"b": {0: (1.0, 0.2)}, "a": {0: (1.0, 0.2)}}, ("b", 0)),
        ({"a": {4: (1.0, 0.2), 2: (1.0, 0.2), 3: (1.0, 0.2)}}, ("a", 2)),
    ],
    ids=["survival", "then reward", "then the grid's order", "then the lowest seed"],
)
def test_the_best_by_validation_is_chosen(cells, chosen):
    ranked = [(variant, found.seed) for variant, found in show.ranked(made_up(**cells), "g")]
    assert ranked[0] == chosen and len(set(ranked)) == sum(map(len, cells.values()))


def test_the_choice_sees_no_test_episode(workspace):
    told = deploy()
    for variant in LEARNED:
        for seed in (0, 1):
            other = (variant, seed) != (told["variant"], told["seed"])
            change_episodes(
                "results", f"case14/{variant}/seed={seed}", lambda table, v=other: table.assign(survival=float(v))
            )
    again = deploy()
    assert again.pop("test") != told.pop("test") and again.pop("harm") != told.pop("harm")
    assert again == told


# --- the files ---


def with_survival(table, episode, survival):
    chosen = (table["split"] == "test") & (table["episode"] == episode)
    return table.assign(survival=table["survival"].astype(float).mask(chosen, survival))


def test_the_policy_is_that_of_the_chosen_run_and_the_card_says_what_its_files_say(workspace):
    for name, episode, survival in (("reconnect", 0, 0.5), *((name, 1, 0.75) for name in LEARNED)):
        for seed in read_cell(f"results/runs/case14/{name}"):
            change_episodes(
                "results", f"case14/{name}/seed={seed}", lambda t, e=episode, s=survival: with_survival(t, e, s)
            )
    told = deploy()
    chosen = read_cell(f"results/runs/case14/{told['variant']}")[told["seed"]]
    best = [
        each.manifest["best_validation"]
        for name in LEARNED
        for each in read_cell(f"results/runs/case14/{name}").values()
    ]
    assert len(best) == 4 == told["chosen_among"]["runs"]
    assert chosen.manifest["best_validation"] == max(best, key=lambda each: (each["survival"], each["reward_mean"]))
    assert (FOLDER / POLICY).read_bytes() == (left_by_training(workspace, told) / POLICY).read_bytes()
    assert policy_digest(FOLDER / POLICY) == chosen.manifest["policy_sha256"] == told["policy_sha256"]
    assert json.loads((FOLDER / "card.json").read_text()) == told

    budget = chosen.manifest["budget"]
    steps = sum(budget[phase]["env_steps"] for phase in ("train", "validation", "corpus"))
    assert told["trained_on"]["env_steps"] == steps < sum(used["env_steps"] for used in budget.values())
    assert told["trained_on"]["decisions"] == chosen.manifest["decisions"]
    kept = pd.DataFrame(chosen.training).astype(float).set_index("decisions").loc[told["trained_on"]["checkpoint"]]
    assert [f"{value:.6g}" for value in kept[["survival", "reward_mean"]]] == [
        f"{chosen.manifest['best_validation'][key]:.6g}" for key in ("survival", "reward_mean")
    ]
    assert (told["trained_on"]["number"], told["trained_on"]["what"]) == (20, "resampled scenarios")

    survival = [100 * float(row["survival"]) for row in chosen.of_split("test")]
    alone = [100 * float(row["survival"]) for row in read_cell("results/runs/case14/reconnect")[0].of_split("test")]
    assert told["test"]["survival"] == pytest.approx(sum(survival) / 3) and told["test"]["episodes"] == 3
    loss, (gain,) = [b - a for a, b in zip(survival[1:], alone[1:], strict=True)], [survival[0] - alone[0]]
    assert alone == [50, 100, 100] and told["harm"] == {
        "surviving": 2,
        "loss": pytest.approx(sum(loss) / 2),
        "gain": gain,
    }
    assert loss[0] == 25
    noted = json.loads(Path("results/provenance/case14.json").read_text())[told["variant"]][str(told["seed"])]
    assert told["decision_latency_ms"] == noted["decision_latency_ms"] > 0

    card = (FOLDER / "card.md").read_text()
    for said in (
        f"seed {told['seed']}",
        f"{told['test']['survival']:.1f} % of the horizon",
        "this one seed",
        "of 4 runs",
    ):
        assert said in card


def test_the_same_runs_give_the_same_bytes(workspace):
    deploy()
    first = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert set(first) == {POLICY, "card.json", "card.md"}
    shutil.rmtree(FOLDER)
    deploy()
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir()} == first


def test_a_grid_without_reconnection_alone_has_a_card_without_harm(workspace):
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["grid"]["baselines"] = []
    for study in config.STUDIES:
        raw[study]["variants"] = [name for name in raw[study]["variants"] if name != "reconnect"]
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    assert deploy()["harm"] is None and "| **Minus reconnection** | not known |" in (FOLDER / "card.md").read_text()


# --- where git keeps no policy ---


def test_a_policy_that_git_does_not_keep_is_trained_once_more_but_not_if_it_is_deployed(workspace, monkeypatch):
    told = deploy()
    bytes_ = (FOLDER / POLICY).read_bytes()
    shutil.rmtree("checkpoints")
    trained = []
    monkeypatch.setattr(policies, "_train", lambda *run, train=policies._train: trained.append(run) or train(*run))
    deploy()
    assert trained == []
    shutil.rmtree(FOLDER)
    assert deploy() == told
    assert trained == [("case14", told["variant"], told["seed"])] and (FOLDER / POLICY).read_bytes() == bytes_


def test_a_policy_that_cannot_be_trained_again_is_one_line(workspace):
    told = deploy()
    shutil.rmtree(FOLDER)
    place = f"case14/{told['variant']}/seed={told['seed']}"
    change_manifest("results", place, policy_sha256="0" * 64)
    with pytest.raises(ReportError) as error:
        deploy()
    assert re.fullmatch(
        rf"no results/runs/{place}/{POLICY}: its cell was not run, or by other code .*; run `dvc repro .*`",
        one_line(error),
    )
    assert not FOLDER.exists()


def test_neither_is_one_of_other_settings_and_nothing_is_trained(workspace, monkeypatch):
    told = deploy()
    shutil.rmtree(FOLDER)
    shutil.rmtree("checkpoints")
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["base"]["sac"]["gamma"] = 0.5
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.setattr(policies, "_train", None)
    with pytest.raises(
        ReportError, match=f"keeps no policy, and params.yaml has other settings of {told['variant']} now"
    ) as error:
        deploy()
    assert one_line(error)


def test_a_policy_of_another_environment_is_refused(workspace):
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["environments"]["case14"]["thermal_factor"] = 0.81
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(
        ReportError, match=r"^results/runs/case14/\w+/seed=\d was trained in another environment than"
    ) as error:
        deploy()
    assert one_line(error)


def test_a_kept_policy_that_is_another_one_is_refused(workspace):
    told = deploy()
    shutil.rmtree(FOLDER)
    kept = Path(f"results/runs/case14/{told['variant']}/seed={told['seed']}")
    kept.mkdir()
    shutil.copy(f"checkpoints/results/case14/{told['variant']}/seed={1 - told['seed']}/{POLICY}", kept / POLICY)
    with pytest.raises(ReportError, match=rf"^{kept}/{POLICY} is another policy than the manifest") as error:
        deploy()
    assert one_line(error)


def test_a_grid_on_which_nothing_learns_has_none_to_choose_from(workspace):
    with pytest.raises(ReportError, match="trains nothing on wcci2020: no policy to choose from"):
        show.write_deployed(config.load(), "wcci2020")


# --- playing it ---


class Recorded:
    """An agent and what it was asked and decided."""

    simulator_calls = dc_calls = llm_calls = 0

    def __init__(self, agent):
        self.agent, self.decided = agent, []

    def act(self, state, x, legal):
        self.decided.append((x.tobytes(), self.agent.act(state, x, legal)))
        return self.decided[-1][1]


def made_up_policy(path):
    """Weights at random in the place of a policy: it switches at almost every decision, a small run's hardly ever."""
    params, rng = config.load(), np.random.default_rng(34)
    world = World(params.environment("case14"), params.scenarios, params.base.operator)
    policy = load_policy(path, world.catalogue)
    weights = {name: rng.normal(size=each.shape).astype(np.float32) for name, each in policy.weights.items()}
    weights["log_prior"] *= 0
    DeployedPolicy(policy.space, weights).save(path)
    world.env.close()


@pytest.mark.parametrize("switches", [False, True], ids=["of a run", "made up, which switches more"])
def test_the_card_plays_it_in_three_lines_and_under_the_runner_it_decides_as_in_our_loop(workspace, switches):
    deploy()
    three, under_the_runner = re.findall(r"```python\n(.*?)```", (FOLDER / "card.md").read_text(), flags=re.DOTALL)
    if switches:
        made_up_policy(FOLDER / POLICY)
    played = {}
    exec(three, played)
    agent = played["agent"]
    assert three.count("\n") == 3 and not played["done"] and not played["info"]["is_illegal"]
    agent.agent = of_runner = Recorded(agent.agent)
    exec(under_the_runner, played)

    params = config.load()
    world, ours = World(params.environment("case14"), params.scenarios, params.base.operator), Recorded(of_runner.agent)
    (result,) = evaluate.play(world, ours, "train", [0])
    for env in (agent.env, world.env):
        env.close()
    assert result.survival == 1 and result.decisions > 10 and result.topology_actions > (10 if switches else 0)
    assert not switches or len({action for _, action in ours.decided}) > 2
    assert of_runner.decided[: result.decisions] == ours.decided
    assert len(of_runner.decided) <= result.decisions + 2  # it plays all rows of the arrays, two more than the horizon


def test_without_a_file_the_deployed_policy_plays(workspace):
    deploy()
    agents = [grid_agent("case14"), grid_agent("case14", FOLDER / POLICY)]
    mine, named = (agent.agent.deployed.weights for agent in agents)
    for agent in agents:
        agent.env.close()
    assert mine.keys() == named.keys() and all((mine[name] == named[name]).all() for name in named)
    with pytest.raises(ValueError, match=rf"^{FOLDER}/{POLICY} was trained on case14, not on ") as error:
        grid_agent("wcci2020", FOLDER / POLICY)
    assert one_line(error)
    kept = Path("results/runs/case14/sac/seed=0") / POLICY
    kept.parent.mkdir(parents=True, exist_ok=True)
    (FOLDER / POLICY).rename(kept)
    told = rf"^no {FOLDER}/{POLICY}: `dvc repro deployed@case14` makes it; or name another: {kept}$"
    with pytest.raises(FileNotFoundError, match=told) as error:
        grid_agent("case14")
    assert one_line(error)
    with pytest.raises(config.ConfigError, match=r"environment 'case41' is not in params\.yaml; did you mean 'case14'"):
        grid_agent("case41")


# --- its seconds ---


def test_a_test_is_timed_anew_beside_others_and_only_where_it_plays_the_committed_episodes(workspace, capsys):
    before = read_provenance("results", "case14", "sac")
    assert test_seconds.main(["case14", "sac", "reconnect"]) == 0
    after = read_provenance("results", "case14", "sac")
    assert all(after[seed]["wall_s"]["evaluate"] >= 0 and after[seed]["timed"]["cpu"] for seed in (0, 1))
    assert {**after[0], "wall_s": 0, "timed": 0} == {**before[0], "wall_s": 0, "timed": 0}, "nothing else is touched"
    assert read_provenance("results", "case14", "reconnect")[0]["timed"]
    shutil.copy(f"checkpoints/results/case14/sac/seed=0/{POLICY}", f"checkpoints/results/case14/sac/seed=1/{POLICY}")
    assert test_seconds.main(["case14", "reconnect", "sac"]) == 1
    assert "results/runs/case14/sac, seed 1: no policy of this run" in capsys.readouterr().err
    rows = Path("results/runs/case14/reconnect/episodes.csv")
    rows.write_text(rows.read_text().replace(",test,", ",other,", 1))
    assert test_seconds.main(["case14", "reconnect"]) == 1
    assert "reconnect, seed 0: its test played again gives other episodes" in capsys.readouterr().err
    assert read_provenance("results", "case14", "sac") == after, "nothing is written then"
