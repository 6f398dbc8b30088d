"""Weeks of injections for the grids, made with RTE's generator ChroniX2Grid and our own dispatch and power flow.

Loads, wind and sun are the generator's (`injections`), with its parameters (`cases`). The controllable generators follow
from an economic dispatch (`dispatch`), the losses from AC power flows (`losses`). The 36-substation grids are a region of
the 118-bus case and are cut out of its weeks (`region`). `weeks` makes, checks and writes one week, `make` all of an
environment; `ace.grid.weeks` reads them. `seeds` says which (date, seed) belongs to which split; `forecast` measures the error of
one-step forecasts.

Only making weeks needs the generator, an optional extra: reading, checking and playing them does not.
"""
