"""Which of the names in a pickle could do harm if somebody unpickled it for real, and which are merely unknown.

Reading here runs none of them. The question is what ``torch.load`` would do on a training node: DeepSpeed's own load
trusts its files, so a name that reaches the operating system, the interpreter or another loader is worth an alarm.
"""

from __future__ import annotations

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
    "torch.hub", "torch.jit", "torch.utils.cpp_extension", "torch.utils._config_module", "torch._dynamo", "torch._inductor",
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
    "torch.load", "torch.save", "torch.compile", "torch.storage._load_from_bytes", "torch.serialization.load",
    "torch.serialization.save", "torch._utils._import_dotted_name", "torch.ops.load_library", "torch.classes.load_library",
    "torch.from_file", "torch.set_num_threads", "numpy.load", "numpy.save", "numpy.fromfile", "numpy.memmap",
    "numpy.loadtxt", "numpy.genfromtxt", "numpy.savetxt", "functools.partial", "functools.reduce",
    "collections.abc.Callable", "pathlib.os", "copyreg.add_extension", "copy_reg.add_extension",
))  # fmt: skip

#: What torch, DeepSpeed and plain Python values need.
_KNOWN_PACKAGES = frozenset(("torch", "deepspeed", "numpy", "collections", "datetime", "decimal", "fractions", "uuid"))
_KNOWN_NAMES = frozenset((
    "_codecs.encode", "copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__", "argparse.Namespace",
    "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath", "pathlib.WindowsPath",
    "enum.Enum", "random.Random",
))  # fmt: skip

Name = tuple[str, str]


def dangerous(names: Iterable[Name]) -> list[str]:
    """Those of a tree's ``names`` that unpickling for real could run harm with, as ``module.name``, sorted."""
    return sorted({_full(one) for one in names if _is_dangerous(one)})


def unknown(names: Iterable[Name]) -> list[str]:
    """Those that are neither dangerous nor known to be needed: classes of the user's own code, sorted."""
    return sorted({_full(one) for one in names if not _is_dangerous(one) and not _is_known(one)})


def _is_dangerous(name: Name) -> bool:
    module, called = name
    parts = module.split(".")
    if parts[0] in _BUILTINS:
        return called not in _SAFE_BUILTINS
    # A dotted name walks attributes: `collections` with `namedtuple.__globals__` reaches anything.
    if any(part.startswith("__") for part in called.split(".")):
        return _full(name) not in _KNOWN_NAMES
    if any(".".join(parts[:length]) in _DANGEROUS_MODULES for length in range(1, len(parts) + 1)):
        return True
    return _full(name) in _DANGEROUS_NAMES


def _is_known(name: Name) -> bool:
    module, called = name
    if module in _BUILTINS:
        return called in _SAFE_BUILTINS
    return module.split(".")[0] in _KNOWN_PACKAGES or _full(name) in _KNOWN_NAMES


def _full(name: Name) -> str:
    return f"{name[0]}.{name[1]}"
