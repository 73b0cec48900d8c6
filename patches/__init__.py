"""The patches: one file per DeepSpeed function (site) and epoch of it. Installed as ``dspatch.patches``.

A patch file holds one wrapper with wrapt's signature ``(wrapped, instance, args, kwargs)``. Which DeepSpeed releases it
is for stands in compat_matrix.yaml and nowhere else; ``dspatch.patching`` puts it in place.
"""

from __future__ import annotations

if __name__ != "dspatch.patches":
    # From the repository root `import patches` finds this folder too, and every patch would then exist twice.
    raise ImportError(f"this package is dspatch.patches, it cannot be imported as {__name__!r}: use `dspatch.patches`")
