"""Transfer: what learned on one grid is asked in the held-out states of another (our measurement).

    python -m ace.studies.pretrained.transfer neurips2020 wcci2020          asked on neurips2020, learned on wcci2020

The committed models of the grid that was learned join the runs of `measure.py` on the grid that is asked, under its identity:

    finetuned@<grid>      the tuned pretrained model. A word of both grids keeps its tuned row, any other has the pretrained one
    from_scratch@<grid>   the embedded model, where it knows all words: without it nothing is said about pretraining
    frequency@<grid>      the lookup table, where all its actions are actions of the grid that is asked too
"""

import argparse
import json
import sys

from ace import config
from ace.config.errors import exit_code
from ace.grid.environment import World
from ace.llm.controls import control
from ace.llm.models import checkpoint, embedded
from ace.llm.text import ParseFailure, TextMap
from ace.studies.pretrained.bench import Bench
from ace.studies.pretrained.measure import made


def measure(asked, learned, output="results", progress=True):
    """Make the missing runs on the environment `asked` of what learned on `learned`; returns the table of `measure.measure`."""
    params = config.load()
    settings = params.pretrained_model
    source = params.environment(learned)
    tuned, own, words = (
        config.root() / place.format(env=env)
        for place, env in ((checkpoint.TUNED, learned), (embedded.TRAINED, learned), (embedded.TRAINED, asked))
    )
    checkpoint.load(tuned, learned)  # before anything is made
    bench = Bench(params, asked, progress)

    def finetuned(_):
        return bench.asked(*in_words_of(words, *checkpoint.load(tuned, learned)), "finetuned", fast=True)

    wanted = {"finetuned": finetuned}
    model, tokenizer = embedded.load(own)
    if embedded.wrap(tokenizer_file=str(words / checkpoint.WORDS)).get_vocab().keys() <= tokenizer.get_vocab().keys():
        wanted["from_scratch"] = lambda _: bench.asked(model, tokenizer, "from_scratch", fast=False)
    ranking = json.loads((tuned / "model_manifest.json").read_text())["ranking"]
    ranking = same_actions(ranking, TextMap(World(source, params.scenarios, params.base.operator)), bench.textmap)
    if ranking is not None:
        refine, shortlist = params.base.refine, params.base.greedy.shortlist
        wanted["frequency"] = lambda _: bench.ranked(
            control("frequency", bench.world, bench.whatif, refine, shortlist, ranking)
        )
    names = {f"{proposer}@{learned}-{settings.states}-{settings.seed}": values for proposer, values in wanted.items()}
    return made(bench, settings, output, names)


def in_words_of(words, model, tokenizer):
    """(model, tokenizer) of a tuned model with the vocabulary of another grid, in place. words: folder of that grid's embedded
    model; model, tokenizer: of `checkpoint.load`, in the transplanted form."""
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
    parser = argparse.ArgumentParser(prog="python -m ace.studies.pretrained.transfer", description="Asked on another grid.")
    parser.add_argument("asked", help="the environment that is asked")
    parser.add_argument("learned", help="the environment whose models are asked")
    parser.add_argument("--output", default="results", help="the folder that the table is written below")
    given = parser.parse_args(arguments)
    return exit_code(lambda: print(measure(given.asked, given.learned, given.output).to_string(index=False)))


if __name__ == "__main__":
    sys.exit(main())
