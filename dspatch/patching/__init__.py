"""How a patch gets onto DeepSpeed: matrix, gate, wrapper, ledger, undo.

Read in this order: ``matrix`` (which patches exist, for which releases), ``site`` (one DeepSpeed function), ``body``
(fingerprint of its source), ``gate`` (may this patch be applied here), ``wrapper`` (put on, find, take off),
``imports`` (being told that a module was executed), ``engine`` (joins them), ``tripwire`` (no quiet failure).

Nothing is imported here: ``wrapper``, ``imports`` and ``engine`` need wrapt, which costs more than a bare interpreter
start, and are imported only when deepspeed is.
"""
