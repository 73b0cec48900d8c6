"""Two checkpoints against each other, without torch, without DeepSpeed and without running a pickle.

``fragments`` finds the tensors of a tag under the names of parameters, whatever stage and number of ranks cut them up,
``numbers`` measures how far two runs of elements lie apart, ``compare`` does it for two tags and answers what they are to
each other, ``report`` and ``text`` show the result.
"""

from __future__ import annotations
