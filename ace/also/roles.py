"""LLM-ALSO's two roles: the Critic writes a diagnosis of the training, the Generator a configuration of the shaping terms.

Both see text only. What can't be parsed, names a statistic that is not so, or lies outside the bounds is counted and dropped.

    Diagnosis       failure : lost lines                            Configuration   configuration : margin +0.3 , acting +0.1
                    evidence : lines lost in : 30 %
"""

import re
from collections import Counter
from dataclasses import dataclass

from ace.also.summary import evidence, text
from ace.also.terms import TERMS, as_weights
from ace.llm.text import Parsed, ParseFailure, template

FAILURES = {
    "short episodes": ("survival", -1), "falling survival": ("before", 1), "early blackouts": ("end", -1),
    "overloads": ("overload", 1), "lost lines": ("lost", 1), "far topology": ("moved", 1), "passive": ("acting", -1),
    "restless": ("acting", 1), "undecided": ("entropy", 1), "narrow": ("entropy", -1),
}  # fmt: skip
"""failure: (the statistic of a Summary that shows it, which way)."""
WEIGHT = re.compile(r"([a-z]+) \+(\d\.\d)")
MOST_ASKS = 16
"""Calls of the Generator in one round, at the most, until there are as many new configurations as were asked for."""


@dataclass(frozen=True, slots=True)
class Trial:
    """configuration: {term: weight}; gain: of its branch over the control, in the unshaped return; None where it died."""

    configuration: dict
    gain: float | None


def best_of(trials):
    """The one with the highest gain, the first of equals; None where none lived."""
    return max((trial for trial in trials if trial.gain is not None), key=lambda trial: trial.gain, default=None)


# --- text and back ----------------------------------------------------------------------------------------------------


def diagnosis_text(failure, summary):
    """The diagnosis as text. failure: of FAILURES; summary: summary.Summary."""
    statistic, _ = FAILURES[failure]
    return f"failure : {failure}\nevidence : {evidence(statistic, getattr(summary, statistic))}"


def diagnosis_prompt(summary):
    return template("diagnosis").replace("{summary}", text(summary)) + "\n"


def parse_diagnosis(reply, summary):
    """Parsed(failure), or ParseFailure where it is none of FAILURES or the evidence is not what the summary says."""
    lines = [line.strip() for line in reply.strip().splitlines() if line.strip()]
    if len(lines) < 2 or not lines[-2].startswith("failure : "):
        return ParseFailure("no two lines of failure and evidence")
    failure = lines[-2].removeprefix("failure : ")
    if failure not in FAILURES:
        return ParseFailure("not a failure of the list")
    if "\n".join(lines[-2:]) != diagnosis_text(failure, summary):
        return ParseFailure("evidence that the training does not show")
    return Parsed(failure)


def weights_text(configuration):
    """{term: weight} -> text, in the order of TERMS: "margin +0.3 , acting +0.1", or "none"."""
    return " , ".join(f"{term} {configuration[term]:+.1f}" for term in TERMS if term in configuration) or "none"


def configuration_text(configuration):
    """The line that the Generator writes."""
    return f"configuration : {weights_text(configuration)}"


def trial_text(trial):
    """A line of the Generator's prompt: terms, then the gain in percent of a step's reward."""
    what = weights_text(trial.configuration)
    if trial.gain is None:
        return f"{what} : failed"
    points = round(100 * trial.gain)
    return f"{what} : " + (f"better by {points} %" if points > 0 else f"worse by {-points} %" if points < 0 else "the same")


def configuration_prompt(diagnosis, trials):
    """diagnosis: text; trials: [Trial], the first one first."""
    shown = "\n".join(trial_text(trial) for trial in trials) or "none"
    return template("configuration").replace("{diagnosis}", diagnosis).replace("{trials}", shown) + "\n"


def parse_configuration(reply):
    """Parsed({term: weight}), with a term at least, or ParseFailure."""
    lines = [line.strip() for line in reply.strip().splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("configuration : "):
        return ParseFailure("no line of a configuration")
    found = [WEIGHT.fullmatch(part.strip()) for part in lines[-1].removeprefix("configuration : ").split(" , ")]
    if None in found:
        return ParseFailure("not a list of terms and weights")
    configuration = {match[1]: float(match[2]) for match in found}
    if len(configuration) < len(found):
        return ParseFailure("a term named twice")
    try:
        as_weights(configuration)
    except ValueError:
        return ParseFailure("outside the bounds")
    return Parsed(configuration)


# --- who answers ------------------------------------------------------------------------------------------------------


class Critic:
    """counts: diagnoses asked for, and unparsable ones."""

    def __init__(self, recorder):
        self.recorder, self.counts = recorder, Counter(diagnoses=0, unparsable_diagnoses=0)

    def diagnose(self, summary, seed):
        """A failure of FAILURES, or None where the reply is no diagnosis."""
        (record,) = self.recorder.ask("diagnosis", [diagnosis_prompt(summary)], seed)
        parsed = parse_diagnosis(record["reply"], summary)
        self.counts["diagnoses"] += 1
        if isinstance(parsed, ParseFailure):
            self.counts["unparsable_diagnoses"] += 1
            record["parse"], record["verdict"] = parsed.reason, "unparsable"
            return None
        record["parse"], record["verdict"] = parsed.value, "diagnosed"
        return parsed.value


class Generator:
    """counts: configurations asked for; unparsable, out_of_bounds, and repeated ones, that were known."""

    def __init__(self, recorder):
        self.recorder, self.counts = recorder, Counter(configurations=0, out_of_bounds=0, unparsable=0, repeated=0)

    def propose(self, diagnosis, trials, known, n, seed):
        """n configurations {term: weight} that are not known; fewer if MOST_ASKS calls did not find so many.

        diagnosis: text; trials: [Trial], which are shown; known: configurations; seed: () -> a new one for each time it is asked.
        """
        found, prompt, asked = [], configuration_prompt(diagnosis, trials), 0
        while len(found) < n and asked < MOST_ASKS:
            prompts = [prompt] * min(n - len(found), MOST_ASKS - asked)
            asked += len(prompts)
            for record in self.recorder.ask("configuration", prompts, seed()):
                parsed = parse_configuration(record["reply"])
                self.counts["configurations"] += 1
                if isinstance(parsed, ParseFailure):
                    self.counts["out_of_bounds" if parsed.reason == "outside the bounds" else "unparsable"] += 1
                    record["parse"], record["verdict"] = parsed.reason, "unparsable"
                    continue
                new = parsed.value not in [*known, *found]
                record["parse"], record["verdict"] = configuration_text(parsed.value), "proposed" if new else "repeated"
                self.counts["repeated"] += not new
                found += [parsed.value] if new else []
        return found
