"""LLM-ALSO, a neighbour of ACE (arXiv 2605.29293): reward shaping that a language model proposes and short branches test.

    summary.py    what the Critic reads of the stage of training
    roles.py      Critic: summary -> diagnosis; Generator: diagnosis, earlier trials -> configuration
    terms.py      configurations: bounded weights over named shaping terms, added to the rows of a batch
    branches.py   clones of a run that train with a configuration, scored by the unshaped return
    signal.py     the loop of these inside a training run, its controls, and the guard of g_LLM's adjustments
    trials.py     trials on training weeks
    training.py   the embedded model, that learns both roles from them

The paper's horizon, number of candidates, acceptance rule, grammar and prompts are not known: these are our reading.
"""
