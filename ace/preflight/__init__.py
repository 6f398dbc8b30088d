"""Before hours are spent: is everything there that a scale needs, and how long will it take?

plan.py says what would run, worlds.py, language.py and machine.py look for what that needs, estimate.py adds up the time.
Nothing is trained, no result is written and no model is loaded; a server is asked one question of one word. Only campaign.py
goes on from there: it starts the runs of many cells, by these estimates the longest first.
"""
