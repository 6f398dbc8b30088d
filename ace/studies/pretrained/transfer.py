"""Transfer: what learned on one environment is asked in the held-out states of another (our measurement).

    python -m ace.studies.pretrained.transfer neurips2020 wcci2020          asked on neurips2020, learned on wcci2020

WCCI 2020 and NeurIPS 2020 have the same network, with the same words and actions: other are the limits, weeks and opponent.
The committed models of the environment that was learned join the runs of `measure.py` on the one that is asked:

    finetuned@<learned>      the tuned pretrained model. A word of both keeps its tuned row, any other has the pretrained one
    from_scratch@<learned>   the embedded model, where it knows all words. It learned from the whole corpus, the tenth included
                             that for the tuned model is held out
    frequency@<learned>      the lookup table, where all its actions exist
"""

import argparse
import json
import sys
from pathlib import Path

from ace import config
from ace.config.errors import exit_code
from ace.grid.environment import World
from ace.llm.controls import control
from ace.llm.models import checkpoint, embedded, pretrained
from ace.llm.text import ParseFailure, TextMap
from ace.studies.pretrained.bench import Bench, committed
from ace.studies.pretrained.measure import made


def measure(asked, learned, output="results", progress=True):
    """Make the missing runs on the environment `asked` of what learned on `learned`; returns the table of `measure.measure`.

    Scored answers are left out: the set that they are chosen from is of the corpus of `asked`.
    """
    params = config.load()
    params.environment(asked)
    settings, source = params.pretrained_model, params.environment(learned)
    tuned = committed(learned, settings)  # all models, before anything is made
    own, words = (config.root() / embedded.TRAINED.format(env=env) for env in (learned, asked))
    pretrained.folder()
    (model, tokenizer), (_, known) = embedded.load(own), embedded.load(words)
    bench = Bench(params, asked, progress)

    def finetuned(_state):
        return bench.asked(*in_words_of(words, *checkpoint.load(tuned, learned)), "finetuned", fast=True, scored=False)

    wanted = {"finetuned": finetuned}
    if known.get_vocab().keys() <= tokenizer.get_vocab().keys():
        wanted["from_scratch"] = lambda _state: bench.asked(model, tokenizer, "from_scratch", fast=False)
    ranking = json.loads((tuned / "model_manifest.json").read_text())["ranking"]
    ranking = same_actions(ranking, TextMap(World(source, params.scenarios, params.base.operator)), bench.textmap)
    if ranking is not None:
        actor = control("frequency", bench.world, bench.whatif, params.base.refine, params.base.greedy.shortlist, ranking)
        wanted["frequency"] = lambda _state: bench.ranked(actor)
    if left := {"from_scratch", "frequency"} - wanted.keys():
        print(f"{asked} has words or actions that {learned} lacks: without {' and '.join(sorted(left))}", file=sys.stderr)
    names = {f"{proposer}@{learned}-{settings.states}-{settings.seed}": values for proposer, values in wanted.items()}
    models = [tuned / checkpoint.NOTE, tuned / "model_manifest.json", own / "model.safetensors", own / checkpoint.WORDS]
    return made(bench, settings, output, names, [Path(__file__), *models])


def in_words_of(words, model, tokenizer):
    """(model, tokenizer) of a tuned model with the vocabulary of another environment, in place. words: folder of that one's
    embedded model; model, tokenizer: of `checkpoint.load`, in the transplanted form."""
    other, new = checkpoint.in_form("transplanted", words)
    rows, tuned = other.get_input_embeddings().weight.detach().clone(), model.get_input_embeddings().weight.detach()
    known = tokenizer.get_vocab()
    for word, i in new.get_vocab().items():
        if word in known:
            rows[i] = tuned[known[word]]
    checkpoint.set_rows(model, rows)
    for name in ("pad_token_id", "eos_token_id"):
        setattr(model.config, name, getattr(new, name))
    return model, new


def same_actions(ids, source, target):
    """Catalogue ids of `source` as those of `target`, both a TextMap; None where one has no such action."""
    found = [target.parse_action(f"action : {source.action(action)}") for action in ids]
    return None if any(isinstance(each, ParseFailure) for each in found) else [each.value for each in found]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.studies.pretrained.transfer", description="Asked elsewhere.")
    parser.add_argument("asked", help="the environment that is asked")
    parser.add_argument("learned", help="the environment whose models are asked")
    parser.add_argument("--output", default="results", help="the folder that the table is written below")
    given = parser.parse_args(arguments)
    return exit_code(lambda: print(measure(given.asked, given.learned, given.output).to_string(index=False)))


if __name__ == "__main__":
    sys.exit(main())
