"""Fine-tuning of a pretrained model on the corpus: LoRA, and in the transplanted form the rows of its words.

    python -m ace.llm.models.tuning wcci2020 [--output results] [--seed 7]      writes <output>/pretrained_model/wcci2020/

The corpus is that of the embedded model, and so are its samples, of f_LLM and of g_LLM. The loss counts the tokens of the replies
by their position: the pad token is the end token too. A state is kept at every look at the held-out loss, so that a run that was
killed goes on there, with the same bytes in the end.
"""

import argparse
import hashlib
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from ace import config
from ace.config.errors import exit_code
from ace.config.files import written_whole
from ace.grid.environment import World
from ace.llm.finetune import LORA_MODULES
from ace.llm.models import checkpoint, corpus, embedded, pretrained
from ace.llm.models.samples import Writer
from ace.llm.models.training import frequency_ranking
from ace.llm.text import TextMap


def parts(made, states, heldout_share):
    """(corpus to learn from, corpus for the held-out loss): whole episodes, so that no scenario's decisions lie in both.

    made: corpus.Corpus; states: how many the first holds at least, or all where there are fewer; heldout_share: of the episodes,
    the last ones.
    """
    n = len(made.episodes) - max(1, round(heldout_share * len(made.episodes)))
    taken, have = [], 0
    for episode in made.episodes[:n]:
        if have >= states:
            break
        taken.append(episode)
        have += len(episode)
    return corpus.Corpus(made.actions, taken, made.budget), corpus.Corpus(made.actions, made.episodes[n:], {})


def samples(textmap, learned, unseen, settings):
    """(pairs to learn from, pairs for the held-out loss), both (prompt, reply). settings: config.PretrainedModel."""
    writer, other = Writer(textmap, learned), Writer(textmap, unseen)
    other.worth = writer.worth  # which of two near equals is the label is a matter of what is learned from
    return writer.draw(settings.steps * settings.batch_size, settings.seed), other.draw(settings.heldout, settings.seed + 1)


def adapt(model, settings, with_rows):
    """A PeftModel on `model`: new LoRA matrices, and if asked the embedding rows, are what learns."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules=LORA_MODULES, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        adapted = get_peft_model(model, lora)
    adapted.get_base_model().get_input_embeddings().weight.requires_grad_(with_rows)
    return adapted


def tune(adapted, tokenizer, pairs, unseen, settings, state=None, progress=False):
    """Train a model of `adapt` in place; it ends with the weights of the lowest held-out loss. Returns the training curve.

    pairs, unseen: (prompt, reply) samples, those of `samples`; state: a file where the run is kept while it lasts, or None.
    The curve: rows of {step, loss, loss_heldout}. It stops early after `patience` looks without a lower held-out loss.
    """
    run = _Run(adapted, tokenizer, pairs, unseen, settings)
    if state is not None and Path(state).is_file():
        run.load(state)
    bar = tqdm(total=settings.steps, initial=run.step, desc="pretrained model", unit="step", disable=not progress)
    while not run.is_done:
        run.advance(bar.update)
        if state is not None:
            run.save(state)
        bar.set_postfix(loss=f"{run.curve[-1]['loss']:.3f}", heldout=f"{run.curve[-1]['loss_heldout']:.3f}")
    bar.close()
    run.restore_best()
    if state is not None:
        Path(state).unlink(missing_ok=True)
    return run.curve


class _Run:
    """One fine-tuning in progress."""

    def __init__(self, adapted, tokenizer, pairs, unseen, settings):
        self.adapted, self.settings, self.pad = adapted, settings, tokenizer.pad_token_id
        self.encoded, self.unseen = embedded.encode(tokenizer, pairs), embedded.encode(tokenizer, unseen)
        self.batches = embedded.length_batches(self.encoded, settings.batch_size, np.random.default_rng(settings.seed))
        self.weights = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
        rows = [p for name, p in self.weights.items() if "lora_" not in name]
        lora = [p for name, p in self.weights.items() if "lora_" in name]
        groups = [{"params": lora, "highest": settings.lr}, {"params": rows, "highest": settings.rows_lr}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=True)
        self.step, self.curve, self.best, self.best_loss, self.bad_looks = 0, [], {}, math.inf, 0
        said = [settings.model_dump(), [ids for ids, _ in self.encoded + self.unseen]]
        said.append([[name, list(p.shape)] for name, p in self.weights.items()])
        self.identity = hashlib.sha256(json.dumps(said).encode()).hexdigest()

    @property
    def is_done(self):
        return self.step == self.settings.steps or self.bad_looks == self.settings.patience

    def advance(self, tick):
        """Train until the next look at the held-out loss, and look. tick: called after every step."""
        until, losses = min(self.step + self.settings.look_every, self.settings.steps), []
        self.adapted.train()
        while self.step < until:
            self.step += 1
            for group in self.optimizer.param_groups:
                group["lr"] = group["highest"] * embedded.share_of_rate(self.step, self.settings.steps)
            loss = embedded.reply_loss(self.adapted, next(self.batches), self.pad)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise config.ConfigError(f"the loss is {losses[-1]} at step {self.step}: lower pretrained_model.lr or rows_lr")
            embedded.descend(self.optimizer, self.weights.values(), loss)
            tick()
        heldout = embedded.mean_loss(self.adapted, self.unseen, self.pad)
        self.adapted.eval()
        self.curve.append({"step": self.step, "loss": float(np.mean(losses)), "loss_heldout": heldout})
        self.bad_looks += 1
        if heldout < self.best_loss:
            self.best, self.best_loss, self.bad_looks = self._copy(), heldout, 0

    def restore_best(self):
        with torch.no_grad():
            for name, weight in self.best.items():
                self.weights[name].copy_(weight)

    def _copy(self):
        return {name: p.detach().clone() for name, p in self.weights.items()}

    def save(self, path):
        kept = {name: getattr(self, name) for name in ("step", "curve", "best", "best_loss", "bad_looks", "identity")}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with written_whole(Path(path)) as partial:
            torch.save({**kept, "weights": self._copy(), "optimizer": self.optimizer.state_dict()}, partial)

    def load(self, path):
        """Go on from a state. Where it is of other settings, samples or weights, or can't be read, the run begins anew."""
        try:
            state = torch.load(path, weights_only=True)
        except Exception:  # a broken file brings whatever its parser raises
            return
        if state["identity"] != self.identity:
            return
        self.optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for name, weight in state["weights"].items():
                self.weights[name].copy_(weight)
        for name in ("step", "curve", "best", "best_loss", "bad_looks"):
            setattr(self, name, state[name])
        for _ in range(self.step):
            next(self.batches)


# --- as a stage -------------------------------------------------------------------------------------------------------


def make(environment, output="results", seed=None, progress=True):
    """Fine-tune the pretrained model on an environment's corpus; returns (folder, training curve).

    Writes <output>/pretrained_model/<environment>/: what `checkpoint.save_tuned` writes, training_curve.csv and
    model_manifest.json with the set of actions and what the corpus cost, as the stage language_model has them.
    """
    params = config.load()
    params.environment(environment)
    settings = params.pretrained_model
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    base, words = pretrained.folder(), config.root() / embedded.TRAINED.format(env=environment)
    model, tokenizer = checkpoint.in_form(settings.form, words, base)
    made = corpus.build(params, environment, progress)
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    learned, unseen = parts(made, settings.states, settings.heldout_share)
    pairs, held = samples(TextMap(world), learned, unseen, settings)
    adapted = adapt(model, settings, with_rows=settings.form == "transplanted")
    state = config.root() / pretrained.PLACE / "tuning" / f"{environment}-{settings.seed}.pt"
    curve = pd.DataFrame(tune(adapted, tokenizer, pairs, held, settings, state, progress)).round(4)
    folder = config.root() / output / "pretrained_model" / environment
    folder.mkdir(parents=True, exist_ok=True)
    curve.to_csv(folder / "training_curve.csv", index=False, lineterminator="\n")
    manifest = {
        "environment": environment, "scale": params.scale, "base": pretrained.MODEL, "settings": settings.model_dump(),
        "states": len(learned.visits), "actions": [int(a) for a in made.actions],
        "ranking": [int(a) for a in frequency_ranking(TextMap(world), learned)], "budget": made.budget,
    }  # fmt: skip
    (folder / "model_manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    note = {"form": settings.form, "environment": environment, "base_sha256": checkpoint.weights_digest(base)}
    checkpoint.save_tuned(adapted, tokenizer, folder, {**note, "seed": settings.seed})
    return folder, curve


def is_made_with(folder, settings):
    """Whether a folder of `make` is there, of these settings."""
    path = Path(folder) / "model_manifest.json"
    own = set(type(settings).model_fields) - {"sizes", "seeds"}
    noted = json.loads(path.read_text())["settings"] if path.is_file() else {}
    return all(noted.get(name) == getattr(settings, name) for name in own)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.llm.models.tuning", description="Tune the pretrained model.")
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that pretrained_model/ is in")
    parser.add_argument("--seed", type=int, help="in the place of `pretrained_model.seed`")
    given = parser.parse_args(arguments)

    def work():
        started = time.time()
        folder, curve = make(given.environment, given.output, given.seed)
        print(f"{config.named(folder)}: {len(curve)} looks, {time.time() - started:.0f} s")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
