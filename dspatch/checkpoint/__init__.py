"""What checkpoint files say. Never imports deepspeed; needs no torch for index, tree, facts and inventory.

``archive`` reads the zip index of a ``.pt`` file, ``unpickle`` its object tree without running any of it, ``content``
the bytes and checksums of tensors, ``layout`` and ``tags`` know DeepSpeed's file and folder names, ``shard`` turns
one file into facts. Everything that is wrong with a file comes out as one ``Damaged``.
"""

from __future__ import annotations
