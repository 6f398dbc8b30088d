"""The catalogue against Grid2Op's own enumeration, and its legality mask against Grid2Op's verdict."""

import grid2op
import numpy as np
import pytest
from lightsim2grid import LightSimBackend

from ace.grid.actions import Catalogue


@pytest.fixture(scope="module", params=["l2rpn_case14_sandbox", "l2rpn_wcci_2020"])
def grid(request):
    env = grid2op.make(request.param, test=True, backend=LightSimBackend())
    return env, Catalogue(env)


def test_catalogue_is_exactly_grid2ops_unitary_set(grid):
    env, catalogue = grid
    ours = set(zip(catalogue.sub[1:].tolist(), catalogue.code[1:].tolist(), strict=True))
    theirs = set()
    for action in env.action_space.get_all_unitary_topologies_set(env.action_space):
        sub = int(catalogue.sub_of_element[np.flatnonzero(action.set_bus)[0]])
        code = int(((action.set_bus[catalogue.elements[sub]] == 2) << np.arange(len(catalogue.elements[sub]))).sum())
        theirs.add((sub, code))
    assert ours == theirs
    assert len(ours) == catalogue.n - 1 == {14: 178, 36: 66_810}[env.n_sub]


def test_one_substation_holds_98_percent():
    catalogue = Catalogue(grid2op.make("l2rpn_wcci_2020", test=True, backend=LightSimBackend()))
    assert (catalogue.hub, len(catalogue.hub_codes), catalogue.hub_bits) == (16, 65_505, 16)
    assert catalogue.n_enum == 1 + 66_810 - 65_505
    assert len(catalogue.hub_excluded) + 65_505 == 2**16


def test_118_substations():
    catalogue = Catalogue(grid2op.make("l2rpn_wcci_2022", test=True, backend=LightSimBackend()))
    assert catalogue.n - 1 == 72_957 and catalogue.hub == 48 and len(catalogue.hub_codes) == 65_505


def test_id_of_inverts_the_catalogue(grid):
    _, catalogue = grid
    for action in np.random.default_rng(0).integers(1, catalogue.n, 300):
        sub, code = int(catalogue.sub[action]), int(catalogue.code[action])
        every = (1 << len(catalogue.elements[sub])) - 1
        assert catalogue.id_of(sub, code) == catalogue.id_of(sub, ~code & every) == action


def test_legality_vector_list_and_single_question_agree(grid):
    env, catalogue = grid
    rng = np.random.default_rng(1)
    topo = env.reset().topo_vect.astype(np.int8)
    for action in rng.integers(1, catalogue.n, 20):
        topo = catalogue.apply(action, topo)
    topo[catalogue.line_or_pos[3]] = topo[catalogue.line_ex_pos[3]] = -1
    cooldown = (rng.random(catalogue.n_sub) < 0.3).astype(int)
    legal = catalogue.legality(topo, cooldown, True)
    listed = set(catalogue.legal_ids(legal).tolist())
    for action in np.concatenate([np.arange(catalogue.n_enum), rng.integers(0, catalogue.n, 3000)]):
        expected = action == 0
        if action:
            place = catalogue.elements[catalogue.sub[action]]
            bus, off = catalogue.bus(action), topo[place] <= 0
            alias = (bus[~off] == topo[place][~off]).all() and (bus[off] == 1).all()
            expected = cooldown[catalogue.sub[action]] == 0 and not alias and (bus[off] == 1).all()
        assert catalogue.is_legal(legal, action) == expected == (int(action) in listed)


def test_in_quiet_states_only_do_nothing_is_legal(grid):
    env, catalogue = grid
    legal = catalogue.legality(env.reset().topo_vect, np.zeros(catalogue.n_sub, int), False)
    assert catalogue.legal_ids(legal).tolist() == [0]


def test_legal_actions_do_in_grid2op_what_apply_says(grid):
    """No legal action is refused, reconnects a line or moves anything else; played actions put the substation in cooldown."""
    env, catalogue = grid
    rng = np.random.default_rng(2)
    env.seed(0)
    obs = env.reset()
    obs, *_ = env.step(env.action_space({"set_line_status": [(5, -1)]}))
    played = 0
    for _ in range(60):
        legal = catalogue.legality(obs.topo_vect, obs.time_before_cooldown_sub, True)
        action = int(rng.choice(catalogue.legal_ids(legal)))
        expected = catalogue.apply(action, obs.topo_vect.astype(np.int8))
        grid_action = catalogue.to_grid2op(action, env.action_space, obs.topo_vect)
        obs_next, _, done, info = env.step(grid_action)
        assert not info["is_illegal"] and not info["is_ambiguous"], info["exception"]
        if done or info["disc_lines"].max() >= 0:
            obs = env.reset()
            continue
        np.testing.assert_array_equal(obs_next.topo_vect, expected)
        if action and env.parameters.NB_TIMESTEP_COOLDOWN_SUB:
            again = catalogue.legality(obs_next.topo_vect, obs_next.time_before_cooldown_sub, True)
            assert not catalogue.is_legal(again, action)
        obs = obs_next
        played += action != 0
    assert played > 10
