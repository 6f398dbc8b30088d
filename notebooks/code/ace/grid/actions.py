import numpy as np
HUB_PATTERNS = 4096

class Catalogue:

    def __init__(self, grid):
        cls = grid if isinstance(grid, type) else type(grid)
        if cls.n_busbar_per_sub != 2:
            raise ValueError(f'the catalogue is made for 2 bus bars per substation, this grid has {cls.n_busbar_per_sub}')
        self.dim_topo, self.n_sub, self.n_line = (int(cls.dim_topo), int(cls.n_sub), int(cls.n_line))
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
            raise ValueError(f'substations {hubs} all have more than {HUB_PATTERNS} patterns; at most one is supported')
        self.hub = hubs[0] if hubs else None
        order = [s for s in range(self.n_sub) if s != self.hub] + hubs
        self.sub = np.concatenate([[-1]] + [np.full(len(codes[s]), s) for s in order]).astype(np.int16)
        self.code = np.concatenate([[0]] + [codes[s] for s in order]).astype(np.int32)
        self.n = len(self.code)
        self.n_enum = self.n - (len(codes[self.hub]) if hubs else 0)
        self.hub_bits = int(n_elements[self.hub]) - 1 if hubs else 0
        self.hub_codes = self.code[self.n_enum:] >> 1
        every = np.arange(2 ** self.hub_bits if hubs else 0, dtype=np.int32)
        self.hub_excluded = np.setdiff1d(every, self.hub_codes)
        self.n_legal = self.n_enum + 1 + 2 * self.hub_bits
        self._enum_sub, self._enum_code = (self.sub[1:self.n_enum], self.code[1:self.n_enum])
        self._hub_shift = np.arange(self.hub_bits)

    def bus(self, action):
        k = len(self.elements[self.sub[action]])
        return (1 + (self.code[action] >> np.arange(k) & 1)).astype(np.int8)

    def id_of(self, sub, code):
        if code & 1:
            code = ~code & (1 << len(self.elements[sub])) - 1
        if sub == self.hub:
            i = int(np.searchsorted(self.hub_codes, code >> 1))
            return self.n_enum + i if i < len(self.hub_codes) and self.hub_codes[i] == code >> 1 else None
        found = np.flatnonzero((self._enum_sub == sub) & (self._enum_code == code))
        return int(found[0]) + 1 if len(found) else None

    def patterns(self, topo):
        bit = np.left_shift(1, self._bit_of_element)
        now = np.bincount(self.sub_of_element, weights=bit * (topo == 2), minlength=self.n_sub)
        off = np.bincount(self.sub_of_element, weights=bit * (topo <= 0), minlength=self.n_sub)
        return (now.astype(np.int32), off.astype(np.int32))

    def legality(self, topo, cooldown_sub, hazard):
        now, off = self.patterns(topo)
        legal = np.zeros(self.n_legal, dtype=np.uint8)
        legal[0] = 1
        if hazard:
            s, c = (self._enum_sub, self._enum_code)
            legal[1:self.n_enum] = (cooldown_sub[s] == 0) & (c & off[s] == 0) & (c != now[s])
        if self.hub is not None:
            legal[self.n_enum] = hazard and cooldown_sub[self.hub] == 0
            bits = self.n_enum + 1
            legal[bits:bits + self.hub_bits] = 1 - (off[self.hub] >> 1 >> self._hub_shift & 1)
            legal[bits + self.hub_bits:] = now[self.hub] >> 1 >> self._hub_shift & 1
        return legal

    def hub_part(self, legal):
        bits = self.n_enum + 1
        blocked = int((1 - legal[bits:bits + self.hub_bits].astype(np.int64) << self._hub_shift).sum())
        now = int((legal[bits + self.hub_bits:].astype(np.int64) << self._hub_shift).sum())
        return (bool(legal[self.n_enum]), blocked, now)

    def is_legal(self, legal, action):
        if action < self.n_enum:
            return bool(legal[action])
        is_open, blocked, now = self.hub_part(legal)
        code = int(self.hub_codes[action - self.n_enum])
        return is_open and (not code & blocked) and (code != now)

    def legal_ids(self, legal):
        enumerated = np.flatnonzero(legal[:self.n_enum])
        is_open, blocked, now = self.hub_part(legal)
        if not is_open:
            return enumerated
        hub = np.flatnonzero((self.hub_codes & blocked == 0) & (self.hub_codes != now))
        return np.concatenate([enumerated, self.n_enum + hub])

    def apply(self, action, topo):
        topo = topo.copy()
        if action:
            place = self.elements[self.sub[action]]
            topo[place] = np.where(topo[place] > 0, self.bus(action), topo[place])
        return topo

    def to_grid2op(self, action, action_space, topo):
        if not action:
            return action_space()
        place = self.elements[self.sub[action]]
        set_bus = np.zeros(self.dim_topo, dtype=np.int32)
        set_bus[place] = np.where(topo[place] > 0, self.bus(action), 0)
        act = action_space()
        act.set_bus = set_bus
        return act

def _unitary_codes(is_line):
    k = len(is_line)
    code = np.arange(0, 2 ** k, 2, dtype=np.int64)
    lines = int((is_line.astype(np.int64) << np.arange(k)).sum())
    on_bus_2 = code & lines
    valid = ((code == 0) | (on_bus_2 != 0)) & (on_bus_2 != lines)
    code = code[valid]
    return code if len(code) >= 2 else code[:0]
