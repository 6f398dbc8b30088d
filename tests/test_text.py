"""T_s, T_a, T_tau and their parsers."""

from functools import lru_cache
from types import SimpleNamespace

import grid2op
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightsim2grid import LightSimBackend

from ace.grid.actions import Catalogue
from ace.grid.environment import GridState
from ace.llm.text import (
    LINES_SHOWN,
    Decision,
    Parsed,
    ParseFailure,
    TextMap,
    adjustment,
    outcome,
    percent,
    template,
)  # fmt: skip


@lru_cache
def grid(name):
    env = grid2op.make(name, test=True, backend=LightSimBackend())
    return SimpleNamespace(env=env, catalogue=Catalogue(env))


@pytest.fixture(scope="module")
def case14():
    return TextMap(grid("l2rpn_case14_sandbox"))


@pytest.fixture(scope="module")
def wcci():
    return TextMap(grid("l2rpn_wcci_2020"))


def state_of(textmap, rho=None, **changes):
    """A state in which nothing is wrong, with changes."""
    c = textmap.catalogue
    n_line, zero = c.n_line, np.zeros(1, dtype=np.float32)
    fields = {
        "topo": np.ones(c.dim_topo, dtype=np.int8), "line_status": np.ones(n_line, dtype=bool),
        "rho": np.linspace(0.9, 0.1, n_line).astype(np.float32) if rho is None else np.asarray(rho, dtype=np.float32),
        "overflow": np.zeros(n_line, dtype=np.int16), "cooldown_line": np.zeros(n_line, dtype=np.int16),
        "cooldown_sub": np.zeros(c.n_sub, dtype=np.int16), **changes,
    }  # fmt: skip
    injections = ("load_p", "load_q", "gen_p", "gen_v")
    return GridState(0, 0, **fields, **{f"{ahead}{name}": zero for ahead in ("", "next_") for name in injections})


# --- T_a there and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n", [("l2rpn_case14_sandbox", 179), ("l2rpn_wcci_2020", 66_811)])
def test_every_action_comes_back_from_its_text(name, n):
    textmap = TextMap(grid(name))
    texts = [textmap.action(a) for a in range(textmap.catalogue.n)]
    assert len(set(texts)) == len(texts) == n
    assert all(textmap.parse_action(f"action : {text}") == Parsed(a) for a, text in enumerate(texts))


def test_actions_of_the_118_substations_come_back_from_their_text():
    textmap = TextMap(grid("l2rpn_wcci_2022"))
    n, n_enum = textmap.catalogue.n, textmap.catalogue.n_enum
    hub = np.random.default_rng(0).integers(n_enum, n, 5000).tolist()
    assert any("storage" in textmap.action(a) for a in range(n_enum))
    for a in [*range(n_enum), *hub, n - 1]:
        assert textmap.parse_action(f"action : {textmap.action(a)}") == Parsed(a)


def test_action_text_names_what_is_moved(case14):
    """Substation 1 of case14, written by hand from the grid's own arrays."""
    cls = type(grid("l2rpn_case14_sandbox").env)
    line = int(np.flatnonzero(cls.line_or_to_subid == 1)[0])
    load = int(np.flatnonzero(cls.load_to_subid == 1)[0])
    places = case14.catalogue.elements[1].tolist()
    bits = [places.index(cls.line_or_pos_topo_vect[line]), places.index(cls.load_pos_topo_vect[load])]
    action = case14.catalogue.id_of(1, sum(1 << b for b in bits))
    named = {f"line {line}", f"load {load}"}
    text = case14.action(action)
    assert text.startswith("substation 1 : bus 2 : ")
    assert set(text.removeprefix("substation 1 : bus 2 : ").split(" , ")) == named


def test_both_labellings_of_the_buses_are_one_action(case14):
    names = case14.names[4]
    for action in np.flatnonzero(case14.catalogue.sub == 4).tolist():
        bus = case14.catalogue.bus(action)
        for side in (1, 2):
            moved = [n for n, b in zip(names, bus, strict=True) if b == side]
            if moved and len(moved) < len(names):
                assert case14.parse_action(f"action : substation 4 : bus 2 : {' , '.join(moved)}") == Parsed(action)


# --- the parser is strict ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [
    "action : do nothing", "Action: do nothing.", "why not\n\nACTION :  do   nothing \n",
    "action : substation 99 : x\naction : do nothing",
])  # fmt: skip
def test_parser_accepts_do_nothing(case14, reply):
    assert case14.parse_action(reply) == Parsed(0)


@pytest.mark.parametrize("reply, reason", [
    ("", "empty"), (" \n\r\n", "empty"),
    ("do nothing", "not an action"), ("action : do nothing , or not", "not an action"),
    ("action : do nothing\nI hope that helps", "not an action"),
    ("action : substation 4", "not an action"), ("action : substation 4 : bus 1 : line 1", "not an action"),
    ("action : substation 4 : bus 2 :", "not an action"),
    ("action : substation 4 : bus 2 : line 1 line 3", "not an action"),
    ("action : substation 12345678901234567890 : all on bus 1", "not an action"),
    ("action : substation ٤ : all on bus 1", "not an action"),
    ("action : substation 14 : all on bus 1", "no such substation"),
    ("action : substation 4 : bus 2 : line 19", "not at this substation"),
    ("action : substation 4 : bus 2 : generator 0", "not at this substation"),
    ("action : substation 4 : bus 2 : load 3 , load 3", "named twice"),
    ("action : substation 4 : bus 2 : load 3", "no such action"),
])  # fmt: skip
def test_parser_refuses(case14, reply, reason):
    parsed = case14.parse_action(reply)
    assert isinstance(parsed, ParseFailure)
    assert reason in parsed.reason


WORDS = st.sampled_from(
    ["action", ":", "do", "nothing", "substation", "4", "16", "bus", "2", "line", "load", "1", ",", "\n", "all", "on",
     "decision", "+", "-", "K", "adjustments", "9999", "99999", "", "\r", "\x00", "İ", "\ud800"]
)  # fmt: skip
REPLIES = st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join))


@settings(max_examples=400, deadline=None)
@given(REPLIES)
def test_parsers_are_total(case14, reply):
    for parsed in (case14.parse_action(reply), case14.parse_action("action : " + reply)):
        assert isinstance(parsed, ParseFailure) or 0 <= parsed.value < case14.catalogue.n
    for parsed in (case14.parse_critic(reply, {1, 4}), case14.parse_critic("adjustments :\n" + reply, {1, 4})):
        if isinstance(parsed, Parsed):
            assert set(parsed.value) <= {1, 4}
            assert set(parsed.value.values()) <= {-2, -1, 1, 2}


def test_a_megabyte_of_noise_is_refused_quickly(case14):
    for noise in ("x" * 10**6, "action : substation 4 : bus 2 : " + "line 1 , " * 10**5, "adjustments :" * 10**5):
        assert isinstance(case14.parse_action(noise), ParseFailure)
        assert isinstance(case14.parse_critic(noise, {1}), ParseFailure)


def test_critic_parser(case14):
    reply = "decision 2 fixed it\nAdjustments :\n" + "\n".join([adjustment(2, 2), adjustment(5, -1)])
    assert case14.parse_critic(reply, {2, 5, 6}) == Parsed({2: 2, 5: -1})
    assert case14.parse_critic("adjustments:\ndecision 2: -2K", {2}) == Parsed({2: -2})


@pytest.mark.parametrize("reply, reason", [
    ("decision 2 : + K", "no line"), ("adjustments :", "no adjustment"), ("adjustments : decision 2 : + K", "no line"),
    ("adjustments :\ndecision 2 : + 3 K", "not an adjustment"),
    ("adjustments :\ndecision 2 : 2 K", "not an adjustment"),
    ("adjustments :\ndecision 2 : + 0.5 K", "not an adjustment"), ("adjustments :\ndecision 3 : + K", "not a key"),
    ("adjustments :\ndecision 2 : + K\ndecision 2 : - K", "twice"),
    ("adjustments :\ndecision 2 : + K\nthank you", "not an adjustment"),
])  # fmt: skip
def test_critic_parser_refuses(case14, reply, reason):
    parsed = case14.parse_critic(reply, {2})
    assert isinstance(parsed, ParseFailure)
    assert reason in parsed.reason


# --- T_s and T_tau ----------------------------------------------------------------------------------------------------


def test_state_text(wcci):
    rho = np.full(wcci.catalogue.n_line, 0.3)
    rho[[7, 3, 21]] = 1.084, 0.97, 0.961
    status = np.ones(wcci.catalogue.n_line, dtype=bool)
    status[5] = False
    topo = np.ones(wcci.catalogue.dim_topo, dtype=np.int8)
    topo[[wcci.catalogue.line_or_pos[5], wcci.catalogue.line_ex_pos[5]]] = -1
    action = wcci.catalogue.id_of(23, 0b110)
    topo = wcci.catalogue.apply(action, topo)
    cooldown = np.zeros(wcci.catalogue.n_sub, dtype=np.int16)
    cooldown[23] = 2
    lines = wcci.state(state_of(wcci, rho, line_status=status, topo=topo, cooldown_sub=cooldown)).split("\n")
    cls = type(grid("l2rpn_wcci_2020").env)
    ends = [f"({cls.line_or_to_subid[i]}-{cls.line_ex_to_subid[i]})" for i in range(wcci.catalogue.n_line)]
    assert lines[:3] == [f"line 7 {ends[7]} 108 %", f"line 3 {ends[3]} 97 %", f"line 21 {ends[21]} 96 %"]
    rest = [f"off : line 5 {ends[5]}", f"split {wcci.action(action)}", "cooldown : substation 23"]
    assert lines[LINES_SHOWN:] == rest


def test_percentages_and_outcomes():
    assert (percent(1.084), percent(0.0), percent(7.0)) == ("108 %", "0 %", "250 %")
    assert (outcome(None), outcome(0.955)) == ("blackout", "96 %")


def test_trajectory_text_and_its_key_decision(case14):
    state = state_of(case14, np.r_[1.2, np.full(case14.catalogue.n_line - 1, 0.1)])
    decisions = [Decision(state, 0, -0.04, 1.01), Decision(state, 5, -1.0, None)]
    first = f"{case14.line[0]} 120 % : do nothing : 101 % : reward -0.0"
    second = f"{case14.line[0]} 120 % : {case14.action(5)} : blackout : reward -1.0"
    trajectory = f"decision 1 : {first}\ndecision 2 : {second}"
    assert case14.trajectory(decisions) == trajectory
    assert case14.critic_prompt(decisions, 2).endswith(f"Decisions\n{trajectory}\nKey\n{second}\ndecision 2\nAnswer")
    # Without descriptions an action is its bare index, digit by digit; nothing else changes.
    decisions.append(Decision(state, 123, 0.5, 0.9))
    assert f"{case14.line[0]} 120 % : action 1 2 3 : 90 % : reward +0.5" in case14.trajectory(decisions, describe=False)
    bare = case14.critic_prompt(decisions, 2, describe=False)
    assert bare.count(": action 5 : blackout : reward -1.0\n") == 2 and "substation" not in bare.split("Decisions\n")[1]


def test_prompts_hold_their_fields(case14):
    state = state_of(case14)
    prompt = case14.actor_prompt(case14.state(state), [("do nothing", "112 %"), ("answer", "not understood")])
    assert case14.state(state) in prompt
    assert "Tried\ndo nothing : 112 %\nanswer : not understood\n" in prompt
    assert "Tried\nnone\n" in case14.actor_prompt(case14.state(state), [])
    for role, field in (("actor", "{tried}"), ("critic", "{trajectory}")):
        assert field in template(role)
    # The forms that the task prefix shows as examples are forms that the parser knows.
    for form in [line for line in template("actor").split("\n") if line.startswith("action :")][1:]:
        assert "not an action" not in getattr(case14.parse_action(form), "reason", "")
