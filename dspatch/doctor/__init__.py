"""``dspatch doctor``: what is wrong with this installation, found by reading, and by a child process where that is not enough.

Nothing in here imports torch or deepspeed: they may be absent, broken, or hang. One file for each group of checks;
``checks.py`` is how a check looks and runs, ``here.py`` what they all look at.
"""
