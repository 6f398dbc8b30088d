"""One cell of the experiment: a variant on an environment, with all its seeds, from params.yaml to run files.

Every variant, ablation and baseline goes through here; there is no second training script. A run is resumed from its last
checkpoint when it was killed, and ends with the same bytes as one that was not.
"""

import hashlib
import json
import shutil
import time

import numpy as np

from ace import baselines, config, evaluate, pool, run_files
from ace.also.signal import LearningSignal
from ace.coevolve import CoEvolution
from ace.config.files import alone
from ace.grid.environment import own_world, scenario_sets
from ace.grid.fastworld import FastWorld, training_world
from ace.grid.scenarios import Redrawn
from ace.grid.whatif import WhatIf
from ace.llm.clients import open_client
from ace.llm.controls import RandomCritic, control
from ace.llm.lessons import Lessons
from ace.llm.regions import make_regions
from ace.llm.session import LlmSession, fingerprint_of_model, read_model_manifest
from ace.rl import checkpoint
from ace.rl.mask import MaskedExploration
from ace.rl.policy import DeployedPolicy, Policy, load_policy
from ace.rl.sac import SAC

CHECKPOINT_EVERY_S = 60.0
STAMP = "fingerprint"  # of a finished run, in its folder
OTHER = "is of other settings, scenarios, code or processor"
NO_PART_OF_A_RUN = {"chronics", "studies", "report", "preflight", "pipeline"}

SOURCE_SHA256 = pool.source_sha256(NO_PART_OF_A_RUN)
"""Once, when the code is read: an edit during a run must not mark its checkpoints as newer."""


def run_cell(environment, variant, seeds=None, output="results"):
    """Run a variant on an environment and write <output>/runs/<environment>/<variant>/, all seeds together.

    seeds: default `Params.seeds_of`. Seeds of the cell that are not asked for stay as they are. Returns the cell's folder.
    Raises ConfigError before any work starts if something named does not exist.
    """
    params = config.load()
    settings, root = params.settings(variant), config.root()
    params.environment(environment)
    if seeds is None:
        seeds = params.seeds_of(variant)
    if settings.uses_llm:
        open_client(settings.llm, environment, seeds[0], root)
    run_seeds([(environment, variant, seed) for seed in seeds], output, f"{environment} {variant}")
    scratch = scratch_folder(root, output, environment, variant)
    finished = {seed: scratch / f"seed={seed}" / run_files.FINISHED for seed in seeds}
    whole = params.kept_seeds(environment, variant) if output == "results" else seeds  # what is run by hand is looked at
    run_files.pack(root / output, environment, variant, finished, whole)
    for folder in finished.values():  # only now: a killed cell keeps what its finished seeds have done
        shutil.rmtree(folder)
    return run_files.cell_folder(root / output, environment, variant)


def run_seeds(runs, output, title, weights=None):
    """Runs of any cells in one pool, started in their order. Each leaves its files beside its checkpoint, for `run_cell`.

    runs: [(environment, variant, seed)]; weights: of each in the progress of the whole. Those that are finished, by the same
    settings, scenarios and code, are passed over: where all are, no process is started.
    """
    root = config.root()
    waiting = [(*each, root, output) for each in runs if not _is_finished(*each, root, output)]
    if not waiting:
        return
    folders = [scratch_folder(root, output, *each[:2]) / f"seed={each[2]}" for each in waiting]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    if weights is not None:
        weights = [weights[runs.index(each[:3])] for each in waiting]
    with pool.Progress(title, [folder / "progress" for folder in folders], weights):
        pool.run(run_seed, waiting)


def scratch_folder(root, output, environment, variant):
    """Where checkpoints of a cell lie, git-ignored."""
    return root / "checkpoints" / output / environment / variant


def run_seed(environment, variant, seed, root, output):
    """One run: train (if the method learns), play the test and, in the main comparison, what is packaged; leave its files.

    Whoever is at the same run already is waited for: a cluster may have given it up too early, a killed campaign left it behind.
    """
    params = config.load(root / "params.yaml")
    scratch = scratch_folder(root, output, environment, variant) / f"seed={seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    with alone(scratch):
        if _is_finished(environment, variant, seed, root, output):
            return
        folder = scratch / run_files.FINISHED
        if (folder / STAMP).exists():
            print(f"the finished run of {environment} {variant} seed {seed} {OTHER}: run again")
        shutil.rmtree(folder, ignore_errors=True)
        run, started = Run(params, params.settings(variant), environment, seed, root, scratch), time.time()
        if run.settings.method == "sac":
            run.train()
        run.test()
        run.play_lower()
        if variant in params.grid.main:
            run.play_packaged()
        if run.settings.method == "reconnect":
            run.play_redraws()
        run_files.write_finished(folder, run, variant, started)
        (folder / STAMP).write_text(run.fingerprint)  # the last of it: without it the folder is half of one
        (scratch / "state.pt").unlink(missing_ok=True)


def _is_finished(environment, variant, seed, root, output):
    stamp = scratch_folder(root, output, environment, variant) / f"seed={seed}" / run_files.FINISHED / STAMP
    if not stamp.is_file():
        return False
    params = config.load(root / "params.yaml")
    sets = scenario_sets(params.environment(environment), params.scenarios)
    return stamp.read_text() == fingerprint(params, params.settings(variant), environment, sets, root)


def fingerprint(params, settings, environment, sets, root):
    """Of all that decides a run but its seed: settings, scenarios (by split), versions, code as read here, processor, model."""
    # How a server is asked changes no answer: a run that its budget has stopped goes on with another.
    manner = dict.fromkeys(("timeout_s", "retries", "concurrency", "token_budget"), 1)
    llm = settings.llm.model_copy(update=manner)
    sha = hashlib.sha256(config.digest(settings.model_copy(update={"llm": llm})).encode())
    given = params.model_dump(include={"environments", "scenarios", "scale"}) | {"main": sorted(params.grid.main)}
    sha.update(json.dumps([given, run_files.versions()], sort_keys=True).encode())
    sha.update("".join(sets[split].hash() for split in ("train", "validation", "test")).encode())
    sha.update(SOURCE_SHA256 + run_files.processor().encode())  # on another kind training takes another course
    sha.update(fingerprint_of_model(settings.llm, environment, root).encode())
    return sha.hexdigest()


class Run:
    """A run in progress: the world, the learner, the language model's two roles, and their checkpoint."""

    def __init__(self, params, settings, environment, seed, root, scratch):
        self.params, self.settings, self.environment, self.seed = params, settings, environment, seed
        self.root, self.scratch = root, scratch
        # The fast world where it is right; some test episodes are repeated on Grid2Op itself.
        self.world = own_world(params.environment(environment), params.scenarios, settings.operator)
        self.training = training_world(self.world)
        self.whatif = WhatIf(self.world)
        self.rows, self.finetunes, self.marks = [], [], []
        self.plays = evaluate.Plays(self.world, self.training)
        self.wall = {"train": 0.0, "evaluate": 0.0, "llm": 0.0, "finetune": 0.0, "packaged": 0.0}
        self.validation_steps, self.learner, self.model_manifest, self.session, self.signal = 0, None, None, None, None
        if settings.uses_llm:
            self.session = LlmSession(settings, self.world, self.whatif, root, environment, seed, scratch)
        if settings.method == "sac":
            self._make_learner()
        else:
            self.agent = self._baseline(self.whatif)
        self.fingerprint = self._fingerprint()

    def _baseline(self, whatif):
        """The agent of a method that learns nothing. whatif: the engine that it may ask."""
        return {
            "do_nothing": baselines.DoNothing,
            "reconnect": baselines.DoNothing,
            "greedy": lambda: baselines.Greedy(whatif, self.settings.greedy.shortlist),
            "dc_argmin": lambda: baselines.DcArgmin(whatif, self.world.catalogue, self._read_manifest()["actions"]),
            "llm_only": lambda: baselines.LlmOnly(self.session.actor, whatif),
        }[self.settings.method]()

    def _make_learner(self):
        s, session = self.settings, self.session
        sac = SAC(self.world.catalogue, self.world.features.n, s.sac, self.seed)
        actor = tuner = lessons = None
        if s.refine.enabled and s.refine.by_llm:
            actor = session.actor
            tuner = session.finetune if s.finetune.enabled and session.can_be_tuned else None
            lessons = Lessons(actor, s) if tuner and s.finetune.draw != "d_llm" else None
        elif s.refine.enabled:
            ranking = self._read_manifest()["ranking"] if s.refine.proposer == "frequency" else []
            actor = control(s.refine.proposer, self.world, self.whatif, s.refine, s.greedy.shortlist, ranking)
        regions = make_regions(s, self.world.catalogue, session, lambda: self._read_manifest()["ranking"], self.seed)
        mask = MaskedExploration(sac, self.world.catalogue, regions, s, self.seed) if regions else None
        self.learner = CoEvolution(
            self.training, sac, s, self.seed, self._validate, actor=actor, critic=self._make_critic(), tuner=tuner,
            lessons=lessons, teacher=session.actor.propose if s.teach.enabled else None, mask=mask,
        )  # fmt: skip
        if s.also.source != "none":
            self.signal = LearningSignal(self.learner, s, self.seed, session.recorder if s.also.source == "model" else None)

    def _make_critic(self):
        if not self.settings.shape.enabled:
            return None
        return self.session.critic if self.session else RandomCritic(self.settings.shape)

    def roles(self):
        """Whoever refines ("actor"), shapes ("critic"), teaches the model ("lessons"), explores ("mask"), tests ("signal")."""
        found = {name: getattr(self.learner, name) for name in ("actor", "critic", "lessons", "mask")} | {"signal": self.signal}
        return {name: role for name, role in found.items() if role is not None}

    def _read_manifest(self):
        """Of the language model's corpus: the set of actions, how often each was the label, what it took to find out."""
        self.model_manifest = read_model_manifest(self.settings.llm, self.environment, self.root)
        return self.model_manifest

    def train(self):
        """Run the co-evolution loop to its end, saving a checkpoint now and then; resume if there is one."""
        self._load()
        started = saved = time.perf_counter()
        before, total = self.wall["train"], self.settings.train.decisions
        for event in self.learner.run():
            if event.kind == "validation":
                more = [role.row() for role in (self.learner.mask, self.signal) if role]
                self.rows.append({name: value for row in (event.row, *more) for name, value in row.items()})
            elif event.kind == "finetune":
                self.finetunes.append(event.row)
                self.wall["finetune"] = self.session.finetune_s
                continue  # within an episode: no place to stop
            elif event.kind == "mark":
                calls = dict(zip(evaluate.CALLS, self._calls(), strict=True))
                self.marks.append({**event.row, **calls, "validation_steps": self.validation_steps})
                if self.signal:
                    self.marks[-1] |= {f"branch_{name}": used for name, used in self.signal.budget.items()}
                continue
            elif self.signal:
                self.signal.after_episode(event.row)
            now = time.perf_counter()
            self.wall["train"] = before + now - started
            pool.report(self.scratch / "progress", min(self.learner.count["decisions"], total), total)
            if now - saved > CHECKPOINT_EVERY_S:
                self._save()
                saved = now
        self._save()
        self.agent = self._kept(self.learner.best_policy, run_files.POLICY)

    def _kept(self, weights, name):
        """What is tested is what is kept: the weights of the file, rounded to float16."""
        path = self.scratch / name
        DeployedPolicy(self.learner.sac.space, weights).save(path)
        return Policy(load_policy(path, self.world.catalogue))

    def test(self):
        """Play the test, then with the policy of every mark once more, as the split `test@<mark>`."""
        self.calls_before_test = self._calls()
        self._play("test", "evaluate")
        if self.settings.method != "llm_only":  # asked again, a language model may answer otherwise
            self.plays.repeat(self.agent, self.params.scenarios.repeats)
        for mark in self.marks:
            name = mark["decisions"]
            file = run_files.MARKED.format(name)
            agent, mark["policy_sha256"] = self._kept(mark["weights"], file), run_files.policy_digest(self.scratch / file)
            self.plays.play(agent, "marks", name=run_files.MARK.format(name))
        if self.session:  # here, since these are the seconds of training and test
            self.wall["llm"] = self.session.recorder.seconds

    def play_lower(self):
        """The test once more at lower thermal limits, where no opponent acts; a baseline's engine has these too."""
        if not self.world.spec.opponent and self.settings.method != "llm_only":
            lower = FastWorld(self.world, limits=self.params.scenarios.lower_limits)
            agent = self.agent if self.learner else self._baseline(WhatIf(lower))
            self.plays.play(agent, "lower", name=run_files.LOWER, world=lower)

    def play_redraws(self):
        """The test under other draws of the opponent: which episodes reconnection alone survives whatever is attacked."""
        test = self.world.sets["test"]
        for draw in range(1, 1 + self.params.scenarios.redraws * self.world.spec.opponent):
            self.world.sets["test"] = Redrawn(test, draw)
            self.plays.play(self.agent, "redraws", name=run_files.REDRAW.format(draw))
        self.world.sets["test"] = test

    def play_packaged(self):
        """After the test, the same agent on the days that Grid2Op packages, where the environment has them beside its weeks."""
        if "packaged" in self.world.sets:
            self._play("packaged", "packaged")

    def _play(self, split, clock):
        """Play all scenarios of a split with the agent as it is. clock: of the wall seconds."""
        started = time.perf_counter()
        shown = self.learner is None and split == "test"  # else training was the whole of it
        self.plays.play(self.agent, split, split, tick=(lambda *n: pool.report(self.scratch / "progress", *n)) if shown else None)
        if self.learner is not None and self._calls() != self.calls_before_test:
            raise RuntimeError("the deployed policy asked a simulator or a language model: it must act alone")
        self.wall[clock] = time.perf_counter() - started

    def forecast_gap(self):
        """How far validation is from what was played: mean |simulated - played| reward of refined actions; None without any."""
        total, n = self.learner.forecast_gap
        return total / n if n else None

    def _calls(self):
        """Counters of whoever could be asked, in the order of evaluate.CALLS."""
        return self.whatif.ac_calls, self.whatif.dc_calls, self.session.recorder.calls if self.session else 0

    def _validate(self):
        steps = self.training.env_steps
        policy = Policy(self.learner.policy)
        results = list(evaluate.play(self.training, policy, "validation", range(len(self.world.sets["validation"]))))
        self.validation_steps += self.training.env_steps - steps
        return float(np.mean([r.survival for r in results])), float(np.mean([r.reward_mean for r in results]))

    def budget(self):
        """Everything the method used, by phase: power flows, language model calls, environment steps."""
        train = {"simulator_calls": 0, "dc_calls": 0, "llm_calls": 0, "env_steps": 0}
        if self.learner is not None:
            train |= zip(evaluate.CALLS, self.calls_before_test, strict=True)
            train["env_steps"] = self.learner.count["env_steps"]
        corpus = self.session.pretraining if self.session else (self.model_manifest or {}).get("budget", {})
        validation = {"simulator_calls": 0, "dc_calls": 0, "llm_calls": 0, "env_steps": self.validation_steps}
        before = {"train": train, "validation": validation, "corpus": {name: int(corpus.get(name, 0)) for name in train}}
        if self.signal:
            before["branches"] = dict.fromkeys(train, 0) | self.signal.budget
        return before | self.plays.used()

    def _fingerprint(self):
        """A checkpoint is continued only by the same settings, scenarios and code, as it was when this process read it."""
        return fingerprint(self.params, self.settings, self.environment, self.world.sets, self.root)

    def _save(self):
        state = {
            "fingerprint": self.fingerprint,
            "learner": self.learner.state_dict(),
            "session": self.session.state_dict() if self.session else None,
            "roles": {name: role.state_dict() for name, role in self.roles().items()},
            "calls": [self.whatif.ac_calls, self.whatif.dc_calls],
            "env_steps": self.training.env_steps,
            "validation_steps": self.validation_steps,
            "rows": self.rows,
            "finetunes": self.finetunes,
            "marks": self.marks,
            "wall": self.wall,
        }
        checkpoint.save(state, self.scratch / "state.pt")

    def _load(self):
        state = checkpoint.load(self.scratch / "state.pt")
        if state is None:
            return
        if state["fingerprint"] != self.fingerprint:
            print(f"checkpoint of {self.environment} seed {self.seed} {OTHER}: starting anew")
            return
        self.learner.load_state_dict(state["learner"])
        if self.session:
            self.session.load_state_dict(state["session"])
        for name, role in self.roles().items():
            role.load_state_dict(state["roles"][name])
        self.whatif.ac_calls, self.whatif.dc_calls = state["calls"]
        self.training.env_steps, self.validation_steps = state["env_steps"], state["validation_steps"]
        self.rows, self.finetunes, self.marks, self.wall = (state[name] for name in ("rows", "finetunes", "marks", "wall"))
