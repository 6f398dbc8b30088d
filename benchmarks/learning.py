"""Environment loop, SAC update, acting, and training as a whole, each against its limit or what one would use otherwise.

    OMP_NUM_THREADS=1 python -m benchmarks.learning

CPU seconds of one thread, both sides of a ratio in one run. Stable-Baselines3 is measured where it is installed
(`pip install -e .[bench]`).
"""

import importlib.util
import resource
import time

import numpy as np
import torch
from torch import nn

from ace import config
from ace.baselines import DoNothing
from ace.coevolve import CoEvolution
from ace.grid.actions import Catalogue
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld
from ace.rl.buffers import Batch
from ace.rl.sac import SAC
from benchmarks.whatif import _row

EPISODES = 6
UPDATES = 60
DECISIONS, QUICK_RUNS = 1500, 5
SB3_STEPS = 2000
SB3_START = 200
SB3_ACTIONS = 300


def rows():
    """One dict a row, as benchmarks.whatif.rows."""
    params = config.load()
    settings = params.settings("sac")
    world = World(params.environment("wcci2020"), params.scenarios, settings.operator)
    yield from _loop(world)
    for name, catalogue, n_features in (
        ("", world.catalogue, world.features.n),
        ("_118", _catalogue("l2rpn_wcci_2022"), 1500),
    ):
        yield from _learner(name, catalogue, n_features, settings)
    yield from _training(world, settings)


def _catalogue(name):
    import grid2op
    from lightsim2grid import LightSimBackend

    return Catalogue(grid2op.make(name, test=True, backend=LightSimBackend()))


def _seconds(work, times):
    """CPU seconds of one call, median of five rounds."""
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - start) / times)
    return float(np.median(rounds))


# --- the environment loop ---------------------------------------------------------------------------------------------


def _loop(world):
    """Steps a second with reflexes, gate, features and legality, against the bare do-nothing loop of the same engine;
    then the same with the making of each episode's scenario, which the bare loop does without."""
    train = world.sets["train"]
    indices = range(0, len(train), len(train) // EPISODES)[:EPISODES]  # of weeks all over the year
    kept = {"train": {index: train[index] for index in indices}}
    for name, played, bare in (
        ("env_loop", FastWorld(world), _bare_fast), ("env_loop_grid2op", world, _bare_grid2op)
    ):  # fmt: skip
        made, own, whole, limit = played.sets, [], [], []
        for index in indices:  # alternating, so that a busy machine slows all alike
            for sets, seconds in ((kept, own), (made, whole)):
                played.sets = sets
                seconds.append(_played(played, index))
            limit.append(bare(played, index))
        theirs = 1 / float(np.median(limit))
        for row, seconds in ((name, own), (f"{name}_scenarios", whole)):
            ours = 1 / float(np.median(seconds))
            yield _row(row, ours, "steps/s", "bare do-nothing loop", theirs, ours / theirs, EPISODES)


def _played(world, index):
    """CPU seconds a step of an episode without actions."""
    agent, start, steps = DoNothing(), time.process_time(), world.env_steps
    step = world.reset("train", index)
    while not step.over:
        x, legal = world.observe(step.state)
        step = world.step(agent.act(step.state, x, legal))
    return (time.process_time() - start) / (world.env_steps - steps)


def _bare_fast(world, index):
    """CPU seconds a step of the raw engine: power flow, protections and counters, nothing else."""
    world.reset("train", index)
    start = time.process_time()
    state, engine = world._first_state(0), world._engine
    world._last_bus = np.ones_like(state.topo)
    for t in range(1, 200):
        outcome = engine.advance(state, 0, *world._injections(t), ahead=world._forecast(t))
        if outcome.done:
            break
        state = outcome.next_state
    return (time.process_time() - start) / t


def _bare_grid2op(world, index):
    world.reset("train", index)
    world.env.reset()
    nothing = world.env.action_space()
    start = time.process_time()
    steps = 1
    while not world.env.step(nothing)[2] and steps < 200:
        steps += 1
    return (time.process_time() - start) / steps


# --- the learner ------------------------------------------------------------------------------------------------------


class _FlatHeads(nn.Module):
    """What one would write first: one logit, or value, for each of the catalogue's actions."""

    def __init__(self, n_features, hidden, n_actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden),
                                  nn.ReLU())  # fmt: skip
        self.heads = nn.ModuleList([nn.Linear(hidden, n_actions) for _ in range(3)])

    def forward(self, x):
        h = self.body(x)
        return [head(h) for head in self.heads]


def _batch(catalogue, n_features, rng, size=64):
    legal = np.ones((size, catalogue.n_legal), np.uint8)
    legal[:, catalogue.n_enum + 1 + catalogue.hub_bits :] = 0
    x = rng.normal(size=(2, size, n_features)).astype(np.float32)
    action = rng.integers(1, catalogue.n, size)
    return Batch(x[0], legal, action, np.zeros(size, np.float32), np.full(size, 0.5, np.float32), x[1], legal,
                 np.ones(size, np.float32), np.zeros(size, np.float32))  # fmt: skip


def _learner(suffix, catalogue, n_features, settings):
    rng = np.random.default_rng(0)
    sac = SAC(catalogue, n_features, settings.sac, seed=0)
    batch = _batch(catalogue, n_features, rng)
    ours = _seconds(lambda: sac.update(batch), UPDATES // 5)

    flat = _FlatHeads(n_features, settings.sac.hidden, catalogue.n)
    target = _FlatHeads(n_features, settings.sac.hidden, catalogue.n).requires_grad_(False)
    optimiser = torch.optim.Adam(flat.parameters(), lr=1e-3, fused=True)
    x, x_next, action = (torch.from_numpy(a) for a in (batch.x, batch.x_next, batch.action[:, None]))

    def flat_update():
        with torch.no_grad():
            logits, q1, q2 = target(x_next)
            p = torch.log_softmax(logits, 1)
            y = 0.9 * (p.exp() * (torch.minimum(q1, q2) - 0.05 * p)).sum(1)
        logits, q1, q2 = flat(x)
        p = torch.log_softmax(logits, 1)
        loss = sum((q.gather(1, action)[:, 0] - y).square().mean() for q in (q1, q2))
        loss = loss + (p.exp() * (0.05 * p - torch.minimum(q1, q2).detach())).sum(1).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(flat.parameters()), 0.01)

    theirs = _seconds(flat_update, 1)
    n = f"{catalogue.n - 1:,} actions"
    yield _row(
        f"sac_update{suffix}", ours * 1e3, "ms", f"flat heads by autograd, {n}", theirs * 1e3, ours / theirs, UPDATES
    )
    act = _seconds(lambda: sac.act(batch.x[0], batch.legal[0], greedy=True), 200)
    yield _row(f"act_ms{suffix}", act * 1e3, "ms", "bar", 0.5, act * 1e3 / 0.5, 1000)


# --- training ---------------------------------------------------------------------------------------------------------


def _training(world, settings):
    """SAC alone, the real loop: steps per CPU second at the quick and at these settings, minutes for 40,000 decisions, peak
    memory."""
    quick = config.load(config.root() / "profiles/quick/params.yaml").settings("sac")
    installed, ours, rounds = importlib.util.find_spec("stable_baselines3"), [], []
    for seed in range(QUICK_RUNS):  # alternating, so that a busy machine slows both alike
        ours.append(_run(world, quick, seed))
        rounds.append(_sb3(world) if installed else {})
    sb3 = {name: float(np.median([speeds[name] for speeds in rounds])) for name in rounds[0]}
    steps, _, _, seconds = np.sum(ours, axis=0)
    train = settings.train.model_copy(update={"decisions": DECISIONS})
    long = _run(world, settings.model_copy(update={"train": train}), 0)
    for label, n, ours in (("train", steps, steps / seconds), (f"train_{DECISIONS}", long[0], long[0] / long[3])):
        for name, theirs in sb3.items():
            reference = f"Stable-Baselines3 {name} on Grid2Op, {SB3_ACTIONS} actions"
            yield _row(f"{label}_vs_sb3_{name.lower()}", ours, "env steps per CPU s", reference, theirs, ours / theirs, int(n))
    _, decisions, updates, seconds = long
    if "DQN" in sb3:
        # its settings below: one update a step once learning has started
        ours, theirs = updates / seconds, sb3["DQN"] * (1 - SB3_START / SB3_STEPS)
        reference = f"Stable-Baselines3 DQN, {SB3_ACTIONS} actions, batch 64"
        yield _row("updates_vs_sb3_dqn", ours, "updates per CPU s", reference, theirs, ours / theirs, 1)
    minutes = seconds / decisions * 40_000 / 60
    yield _row("run_40k_min", minutes, f"min, from {DECISIONS} decisions", "bar", 15, minutes / 15, decisions)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield _row("run_peak_gb", peak, "GB, this whole benchmark", "bar", 2, peak / 2, 1)


def _run(world, settings, seed):
    """One training without its validations: (environment steps, decisions, updates, CPU seconds)."""
    fast = FastWorld(world)
    sac = SAC(fast.catalogue, fast.features.n, settings.sac, seed=seed)
    loop = CoEvolution(fast, sac, settings, seed, lambda: (0.0, 0.0))
    start = time.process_time()
    for _ in loop.run():
        pass
    seconds = time.process_time() - start
    return *(loop.count[name] for name in ("env_steps", "decisions", "updates")), seconds


def _sb3(world):
    """Env steps per CPU second of SB3's DQN and PPO on Grid2Op's own gym environment, with 300 topology actions."""
    from grid2op.gym_compat import BoxGymObsSpace, DiscreteActSpace, GymEnv
    from stable_baselines3 import DQN, PPO

    catalogue, speeds = world.catalogue, {}
    step = world.reset("train", 0)
    actions = [
        catalogue.to_grid2op(a, world.env.action_space, step.state.topo) for a in range(SB3_ACTIONS)
    ]  # fmt: skip
    gym = GymEnv(world.env)
    gym.action_space.close()
    gym.action_space = DiscreteActSpace(world.env.action_space, action_list=actions)
    gym.observation_space.close()
    gym.observation_space = BoxGymObsSpace(
        world.env.observation_space, attr_to_keep=["rho", "topo_vect", "load_p", "gen_p"]
    )
    for name, model in (
        ("DQN", DQN("MlpPolicy", gym, learning_starts=SB3_START, train_freq=1, batch_size=64, seed=0, device="cpu")),
        ("PPO", PPO("MlpPolicy", gym, n_steps=256, batch_size=64, seed=0, device="cpu")),
    ):
        start = time.process_time()
        model.learn(SB3_STEPS)
        speeds[name] = SB3_STEPS / (time.process_time() - start)
    return speeds


if __name__ == "__main__":
    for row in rows():
        print({key: row[key] for key in ("name", "value", "unit", "reference", "reference_value", "ratio")}, flush=True)
