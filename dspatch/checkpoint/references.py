"""Which of the names in a pickle could do harm if somebody unpickled it for real, and which are merely unknown.

Reading here runs none of them. The question is what ``torch.load`` would do on a training node: DeepSpeed's own load
trusts its files, so a name that reaches the operating system, the interpreter or another loader is worth an alarm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Packages and modules with nothing that a checkpoint needs, and with something that runs, opens or loads.
_DANGEROUS_MODULES = frozenset((
    "_aix_support", "_io", "_osx_support", "_pickle", "_posixshmem", "_posixsubprocess", "_pyrepl", "_testcapi", "_thread",
    "aiohttp", "asyncio", "bdb", "cProfile", "cffi", "cloudpickle", "code", "codeop", "commands", "concurrent", "ctypes",
    "dill", "distutils", "doctest", "ensurepip", "fileinput", "ftplib", "gc", "getpass", "glob", "http", "httplib", "idlelib",
    "imaplib", "imp", "importlib", "inspect", "io", "joblib", "lib2to3", "linecache", "logging", "marshal", "mmap",
    "multiprocessing", "nntplib", "nt", "ntpath", "numba", "operator", "_operator", "os", "pdb", "pickle", "pickletools", "pip",
    "pkgutil", "platform", "poplib", "popen2", "posix", "posixpath", "profile", "pty", "pydoc", "requests", "rlcompleter",
    "runpy", "setuptools", "shelve", "shutil", "signal", "site", "smtplib", "socket", "socketserver", "sqlite3", "ssl",
    "subprocess", "sys", "tarfile", "telnetlib", "tempfile", "test", "thread", "threading", "timeit", "trace", "traceback",
    "types", "unittest", "urllib", "urllib2", "venv", "webbrowser", "weakref", "xmlrpc", "zipfile", "zipimport",
    "torch.hub", "torch.jit", "torch.utils.bottleneck", "torch.utils.collect_env", "torch.utils.data.datapipes",
    "torch.utils.cpp_extension", "torch.utils._config_module", "torch._dynamo", "torch._inductor",
    "torch.distributed", "torch.multiprocessing", "torch.package", "torch.fx", "numpy.testing", "numpy.f2py",
    "numpy.distutils", "numpy.lib", "numpy.ctypeslib",
))  # fmt: skip

_BUILTINS = ("builtins", "__builtin__", "__builtins__")
_SAFE_BUILTINS = frozenset((
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set", "slice",
    "str", "tuple", "Ellipsis", "NotImplemented",
))  # fmt: skip

#: Single functions of packages that are otherwise harmless.
_DANGEROUS_NAMES = frozenset((
    "torch.load", "torch.save", "torch.compile", "torch.storage._load_from_bytes",
    "torch._utils._import_dotted_name", "torch.ops.load_library", "torch.classes.load_library",
    "torch.from_file", "torch.set_num_threads", "numpy.load", "numpy.save", "numpy.fromfile", "numpy.memmap",
    "numpy.loadtxt", "numpy.genfromtxt", "numpy.savetxt", "functools.partial", "functools.reduce",
    "collections.abc.Callable", "pathlib.os", "copyreg.add_extension", "copy_reg.add_extension",
))  # fmt: skip

#: Modules of which only these names are harmless.
_SAFE_OF_MODULE = {
    **dict.fromkeys(_BUILTINS, _SAFE_BUILTINS),
    "uuid": frozenset(("UUID", "SafeUUID")),
    "torch.serialization": frozenset(("_get_layout",)),
}

#: What torch, DeepSpeed and plain Python values need; everything else is unknown.
_KNOWN = re.compile(r"""
    torch\.(\w+Storage|Size|device|Tensor|Generator|layout|dtype|memory_format|finfo|iinfo|u?int\d+|b?float\d+\w*|complex\d+
        |bool|half|double|q?u?int\d+\w*|strided|sparse_\w+|contiguous_format|preserve_format|channels_last\w*)
    |torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_\w+|torch\.serialization\._get_layout
    |torch\.storage\.(UntypedStorage|TypedStorage)|torch\.nn\.parameter\.(Parameter|Buffer)|torch\.nn\.Parameter
    |deepspeed\.(runtime|checkpoint|utils|moe)\..+
    |numpy\.(ndarray|dtype|bool_?|u?int\d+|float\d+|complex\d+)|numpy\.(core|_core)\.(multiarray|numeric)\._?\w+
    |numpy\.random\.(_pickle\.\w+|_mt19937\.MT19937|_pcg64\.PCG64|bit_generator\.\w+)
    |collections\.(OrderedDict|defaultdict|Counter|deque)
    |datetime\.\w+|decimal\.Decimal|fractions\.Fraction|uuid\.(UUID|SafeUUID)
    |_codecs\.encode|copyreg\._reconstructor|copy_reg\._reconstructor|copyreg\.__newobj__|argparse\.Namespace
    |pathlib\.(_local\.)?\w*Path|enum\.Enum|random\.Random
""", re.VERBOSE)  # fmt: skip

Name = tuple[str, str]


def dangerous(names: Iterable[Name]) -> list[str]:
    """Those of a tree's ``names`` that unpickling for real could run harm with, as ``module.name``, sorted."""
    return sorted({_full(one) for one in names if _is_dangerous(one)})


def unknown(names: Iterable[Name]) -> list[str]:
    """Those that are neither dangerous nor known to be needed: classes of the user's own code, sorted."""
    return sorted({_full(one) for one in names if not _is_dangerous(one) and not _is_known(one)})


def _is_dangerous(name: Name) -> bool:
    module, called = name
    if module in _SAFE_OF_MODULE:
        return called not in _SAFE_OF_MODULE[module]
    parts = module.split(".")
    # A dotted name walks attributes: `collections` with `namedtuple.__globals__` reaches anything.
    if any(part.startswith("__") for part in called.split(".")):
        return not _is_known(name)
    if any(".".join(parts[:length]) in _DANGEROUS_MODULES for length in range(1, len(parts) + 1)):
        return True
    return _full(name) in _DANGEROUS_NAMES


def _is_known(name: Name) -> bool:
    if name[0] in _SAFE_OF_MODULE:
        return name[1] in _SAFE_OF_MODULE[name[0]]
    return _KNOWN.fullmatch(_full(name)) is not None


def _full(name: Name) -> str:
    return f"{name[0]}.{name[1]}"
