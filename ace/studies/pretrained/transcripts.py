"""Transcripts of the tuned pretrained model as f_LLM, chosen by a rule: what it answers, and what the simulator says of it.

The held-out states of the stage language_model (validation scenarios) are asked in their order, one by one, until EACH of them
were helped by the first proposal and EACH were not; further ones of the kind that is full are left out. All rounds are written.

    python -m ace.studies.pretrained.transcripts wcci2020      # some minutes, after `make pretrained`
"""

import argparse
import json
import sys

from ace import config
from ace.config.errors import exit_code
from ace.config.files import written_whole
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.models import checkpoint, embedded
from ace.llm.models.heldout import load_states
from ace.llm.policy_actor import BadCase, PolicyActor
from ace.llm.text import TextMap
from ace.studies.pretrained.bench import committed
from ace.studies.pretrained.measure import check_base

EACH = 5
SHOWN = ("prompt", "reply", "parse", "verdict")


def choose(actor, states, seed, each=EACH):
    """Lines of the file, in the order of the states: `each` whose first proposal helped and `each` whose did not, fewer where
    the states end before.

    actor: PolicyActor; the original action is to do nothing. A line: {"state": number of the held-out state, "first_helped",
    "helped": of all rounds, "rounds": [{prompt, reply, parse, verdict}]}.
    """
    lines, left = [], {True: each, False: each}
    for number, state in enumerate(states):
        if not any(left.values()):
            break
        before = actor.recorder.calls
        (found,) = actor.refine([BadCase(number, state, 0, 0.0)], seed)
        records = actor.recorder.records[before:]
        helped = found is not None and found.improved
        first = helped and len(records) == 1  # a further round is asked only where none has helped yet
        if left[first]:
            left[first] -= 1
            rounds = [{name: record[name] for name in SHOWN} for record in records]
            lines.append({"state": number, "first_helped": first, "helped": helped, "rounds": rounds})
    return lines


def write(environment, output="results"):
    """Writes <output>/studies/pretrained/<environment>/transcripts.jsonl, a line a state. Returns the lines."""
    params = config.load()
    params.environment(environment)
    check_base()
    model, tokenizer = checkpoint.load(committed(environment, params.pretrained_model), environment)
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    client = LocalClient(model, tokenizer, params.base.llm, "finetuned", fast=True)
    actor = PolicyActor(client, TextMap(world), WhatIf(world), params.base.refine)
    source = config.root() / embedded.TRAINED.format(env=environment) / "heldout.npz"
    states = load_states(source, params.language_model.heldout_states)
    lines = choose(actor, states, params.language_model.seed)
    path = config.root() / output / "studies" / "pretrained" / environment / "transcripts.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        partial.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines), encoding="utf-8")
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m ace.studies.pretrained.transcripts", description="Ten transcripts of the tuned model, by a rule."
    )
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that the file is written below")
    given = parser.parse_args(arguments)

    def work():
        lines = write(given.environment, given.output)
        print(f"{len(lines)} transcripts, {sum(line['first_helped'] for line in lines)} helped at once")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
