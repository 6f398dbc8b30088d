"""The catalogue of unitary topology actions: every legal bus assignment at one substation.

The paper speaks of "more than 60,000 discrete topology actions". Here they are exactly the actions of Grid2Op's
`get_all_unitary_topologies_set` (checked in the tests), kept as two integer arrays instead of 66,810 Python objects:
which substation, and which of its elements go to bus 2. Grid2Op needs 3 s and 215 MB to enumerate them; this takes 50 ms.

98 % of the catalogue belongs to a single substation (65,505 of 66,810 on the 36-substation grid). Ids are therefore
ordered: 0 is "do nothing", then the actions of all other substations, the *enumerated* ones, then those of this *hub*.
"""

import numpy as np

HUB_PATTERNS = 4096
"""A substation with more patterns than this is coded by bits instead of being enumerated (at most one per grid)."""


class Catalogue:
    """Unitary set-bus actions of one grid. Action 0 is do nothing.

    n: number of actions, A
    sub: (A,) int16, the substation acted on, -1 for do nothing
    code: (A,) int32, the target pattern: bit k set means that element k of the substation goes to bus 2. Element 0 always
        stays on bus 1, because swapping both buses of a substation gives the same grid.
    elements[s]: positions of the substation's elements in Grid2Op's topology vector, in the order of the bits
    n_enum: E, ids 0..E-1 are enumerated
    hub: the substation coded by bits, or None; hub_bits: H, its free bits (all elements but the first)
    hub_codes: (A-E,) int32, ascending, `code >> 1` of the hub's actions; the id of hub_codes[i] is E + i
    hub_excluded: values in [0, 2**H) that are no unitary topology (a bus would hold no line)
    n_legal: L = E + 1 + 2 H, length of a legality vector, see `legality`
    """

    def __init__(self, grid):
        """grid: a Grid2Op environment, observation or their class (its grid description is read, nothing is kept)."""
        cls = grid if isinstance(grid, type) else type(grid)
        if cls.n_busbar_per_sub != 2:
            raise ValueError(
                f"the catalogue is made for 2 bus bars per substation, this grid has {cls.n_busbar_per_sub}"
            )
        self.dim_topo, self.n_sub, self.n_line = int(cls.dim_topo), int(cls.n_sub), int(cls.n_line)
        n_elements = np.asarray(cls.sub_info, dtype=int)
        start = np.concatenate([[0], np.cumsum(n_elements)])
        self.elements = [np.arange(start[s], start[s + 1]) for s in range(self.n_sub)]
        self.sub_of_element = np.repeat(np.arange(self.n_sub), n_elements)
        self._bit_of_element = np.arange(self.dim_topo) - start[self.sub_of_element]
        self.line_or_pos = np.asarray(cls.line_or_pos_topo_vect, dtype=int)
        self.line_ex_pos = np.asarray(cls.line_ex_pos_topo_vect, dtype=int)
        is_line = np.zeros(self.dim_topo, dtype=bool)
        is_line[self.line_or_pos] = is_line[self.line_ex_pos] = True

        codes = [_unitary_codes(is_line[self.elements[s]]) for s in range(self.n_sub)]
        hubs = [s for s in range(self.n_sub) if len(codes[s]) > HUB_PATTERNS]
        if len(hubs) > 1:
            raise ValueError(f"substations {hubs} all have more than {HUB_PATTERNS} patterns; at most one is supported")
        self.hub = hubs[0] if hubs else None
        order = [s for s in range(self.n_sub) if s != self.hub] + hubs
        self.sub = np.concatenate([[-1]] + [np.full(len(codes[s]), s) for s in order]).astype(np.int16)
        self.code = np.concatenate([[0]] + [codes[s] for s in order]).astype(np.int32)
        self.n = len(self.code)
        self.n_enum = self.n - (len(codes[self.hub]) if hubs else 0)
        self.hub_bits = int(n_elements[self.hub]) - 1 if hubs else 0
        self.hub_codes = self.code[self.n_enum :] >> 1
        every = np.arange(2**self.hub_bits if hubs else 0, dtype=np.int32)
        self.hub_excluded = np.setdiff1d(every, self.hub_codes)
        self.n_legal = self.n_enum + 1 + 2 * self.hub_bits
        self._enum_sub, self._enum_code = self.sub[1 : self.n_enum], self.code[1 : self.n_enum]
        self._hub_shift = np.arange(self.hub_bits)

    def bus(self, action):
        """Target bus, 1 or 2, of each element of the action's substation: (k,) int8."""
        k = len(self.elements[self.sub[action]])
        return (1 + ((self.code[action] >> np.arange(k)) & 1)).astype(np.int8)

    def id_of(self, sub, code):
        """The action that gives `sub` the pattern `code` (either labelling of the two buses), or None if there is none."""
        if code & 1:
            code = ~code & ((1 << len(self.elements[sub])) - 1)
        if sub == self.hub:
            i = int(np.searchsorted(self.hub_codes, code >> 1))
            return self.n_enum + i if i < len(self.hub_codes) and self.hub_codes[i] == code >> 1 else None
        found = np.flatnonzero((self._enum_sub == sub) & (self._enum_code == code))
        return int(found[0]) + 1 if len(found) else None

    def patterns(self, topo):
        """Present pattern and disconnected elements of every substation as bit codes: two (n_sub,) int32."""
        bit = np.left_shift(1, self._bit_of_element)
        now = np.bincount(self.sub_of_element, weights=bit * (topo == 2), minlength=self.n_sub)
        off = np.bincount(self.sub_of_element, weights=bit * (topo <= 0), minlength=self.n_sub)
        return now.astype(np.int32), off.astype(np.int32)

    def legality(self, topo, cooldown_sub, hazard):
        """What may be played now, as one vector of 0 and 1: (L,) uint8.

        [0:E]        enumerated action is legal; do nothing always is, all others only if `hazard`
        [E]          the hub may be acted on
        [E+1:E+1+H]  hub bit may be 1; 0 where the element is the end of a disconnected line, which keeps its place
        [E+1+H:]     the hub's present pattern, whose action would be a no-op alias and is not legal

        Not legal are: a substation in cooldown, the pattern that is there already, and any pattern that would put the end
        of a disconnected line on bus 2 (its effect is that of another action, or a reconnection in disguise).
        """
        now, off = self.patterns(topo)
        legal = np.zeros(self.n_legal, dtype=np.uint8)
        legal[0] = 1
        if hazard:
            s, c = self._enum_sub, self._enum_code
            legal[1 : self.n_enum] = (cooldown_sub[s] == 0) & ((c & off[s]) == 0) & (c != now[s])
        if self.hub is not None:
            legal[self.n_enum] = hazard and cooldown_sub[self.hub] == 0
            bits = self.n_enum + 1
            legal[bits : bits + self.hub_bits] = 1 - ((off[self.hub] >> 1 >> self._hub_shift) & 1)
            legal[bits + self.hub_bits :] = (now[self.hub] >> 1 >> self._hub_shift) & 1
        return legal

    def hub_part(self, legal):
        """(open, blocked, now) of a legality vector: may the hub be acted on, code of the bits that must stay 0, present code."""
        bits = self.n_enum + 1
        blocked = int(((1 - legal[bits : bits + self.hub_bits].astype(np.int64)) << self._hub_shift).sum())
        now = int((legal[bits + self.hub_bits :].astype(np.int64) << self._hub_shift).sum())
        return bool(legal[self.n_enum]), blocked, now

    def is_legal(self, legal, action):
        if action < self.n_enum:
            return bool(legal[action])
        is_open, blocked, now = self.hub_part(legal)
        code = int(self.hub_codes[action - self.n_enum])
        return is_open and not code & blocked and code != now

    def legal_ids(self, legal):
        """All legal action ids, ascending: (n,) int64."""
        enumerated = np.flatnonzero(legal[: self.n_enum])
        is_open, blocked, now = self.hub_part(legal)
        if not is_open:
            return enumerated
        hub = np.flatnonzero(((self.hub_codes & blocked) == 0) & (self.hub_codes != now))
        return np.concatenate([enumerated, self.n_enum + hub])

    def apply(self, action, topo):
        """Topology vector after the action; ends of disconnected lines stay at -1: (dim_topo,) int8."""
        topo = topo.copy()
        if action:
            place = self.elements[self.sub[action]]
            topo[place] = np.where(topo[place] > 0, self.bus(action), topo[place])
        return topo

    def to_grid2op(self, action, action_space, topo):
        """The Grid2Op action; writes 0 ("leave") at ends of disconnected lines, else Grid2Op would reconnect them."""
        if not action:
            return action_space()
        place = self.elements[self.sub[action]]
        set_bus = np.zeros(self.dim_topo, dtype=np.int32)
        set_bus[place] = np.where(topo[place] > 0, self.bus(action), 0)
        act = action_space()
        act.set_bus = set_bus
        return act


def _unitary_codes(is_line):
    """Codes of all valid patterns of a substation: each bus in use holds at least one end of a line. is_line: (k,) bool."""
    k = len(is_line)
    code = np.arange(0, 2**k, 2, dtype=np.int64)  # bit 0 is never set: element 0 stays on bus 1
    lines = int((is_line.astype(np.int64) << np.arange(k)).sum())
    on_bus_2 = code & lines
    valid = ((code == 0) | (on_bus_2 != 0)) & (on_bus_2 != lines)
    code = code[valid]
    return code if len(code) >= 2 else code[:0]
