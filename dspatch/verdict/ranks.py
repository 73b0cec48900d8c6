"""Talk between ranks: small messages over the job's own key-value store, with a time limit.

The store that ``torch.distributed`` set the job up with is used, not a process group: it needs no collective, so a rank
that failed inside DeepSpeed can still speak while others wait in a collective of DeepSpeed's, and it tells which ranks
did not answer. Every rank writes one message; rank 0 merges them; every rank reads the same merged answer.

Conversations are numbered, and each rank counts for itself. A rank that missed one finds rank 0's answer there already
and goes on to the next number; a rank that waited in vain for rank 0 takes its message back and keeps the number.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dspatch import log
from dspatch.errors import RankSilent, explain, shorten
from dspatch.verdict.heartbeat import beating

#: Largest message of one rank, in bytes.
MESSAGE_LIMIT = 4096

#: Non-zero ranks wait this much longer than rank 0, which needs its own limit to find out who is silent.
_GRACE_SECONDS = 10.0

#: The number of this process's next conversation.
_next = [0]

Message = dict[str, Any]


class Ranks:
    """The ranks of this job, for the length of one load.

    Args:
        timeout: seconds that a rank may take to answer.
    """

    def __init__(self, timeout: float) -> None:
        import torch.distributed as dist

        self.timeout, self.host = timeout, socket.gethostname()
        self._store: Any = None
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if self.world > 1:
            self._store = _store()
        self._prefix = ""
        self._hosts: dict[int, str] = {}

    @property
    def label(self) -> str:
        """``rank 1 on host``."""
        return f"rank {self.rank} on {self.host}"

    def agree(self, topic: str, message: Message, merge: Callable[[Sequence[Message]], Message]) -> Message:
        """Give this rank's message, get the merged answer, which is the same on all ranks.

        Args:
            topic: what is talked about; each one once in the life of this object.
            message: plain data, at most ``MESSAGE_LIMIT`` bytes as JSON.
            merge: run on rank 0 only, over the messages of all ranks in rank order.

        Raises:
            RankSilent: a rank did not answer in time; raised on every rank that did.
        """
        message = {"host": self.host, **message}
        if self._store is None:
            return merge([message])
        begins = not self._prefix
        if begins:
            self._take_number()
        if self.rank:
            key = f"{self._prefix}/{topic}/{self.rank}"
            self._store.set(key, json.dumps(message))
            answer = self._wait_while_moving(f"{self._prefix}/{topic}/all", self.timeout + _GRACE_SECONDS, 0)
            if answer is None:
                if begins:
                    self._store.delete_key(key)
                    _next[0] -= 1
                raise self._silent(topic, [0])
        else:
            answer = self._merge(topic, message, merge)
            if begins:
                self._store.set(f"{self._prefix}/begun", "")
            self._store.set(f"{self._prefix}/{topic}/all", json.dumps(answer))
        if answer.get("silent"):
            self._hosts.update({int(rank): host for rank, host in answer["hosts"].items()})
            raise self._silent(topic, answer["silent"])
        return answer

    def _take_number(self) -> None:
        """The next number; a conversation that rank 0 has begun with its first answer went by without this rank."""
        while self.rank and self._store.check([f"dspatch/{_next[0]}/begun"]):
            _next[0] += 1
        self._prefix = f"dspatch/{_next[0]}"
        _next[0] += 1

    def _merge(self, topic: str, own: Message, merge: Callable[[Sequence[Message]], Message]) -> Message:
        until = time.monotonic() + self.timeout
        messages, silent = [own], []
        for rank in range(1, self.world):
            key = f"{self._prefix}/{topic}/{rank}"
            message = self._wait_while_moving(key, max(until - time.monotonic(), 0.01), rank)
            if message is None:
                silent.append(rank)
                continue
            self._hosts[rank] = message["host"]
            messages.append(message)
            self._store.delete_key(key)
        if silent:
            return {"silent": silent, "hosts": {rank: self._hosts[rank] for rank in silent if rank in self._hosts}}
        return merge(messages)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """While the block runs, the other ranks can see that this one goes on reading files."""
        if self._store is None:
            yield
            return
        with beating(self._moved, self.timeout / 6):
            yield

    def _moved(self, count: int) -> None:
        self._store.set(f"{self._prefix}/moving/{self.rank}", json.dumps({"count": count}))

    def _wait_while_moving(self, key: str, seconds: float, rank: int) -> Message | None:
        """Wait for a message; longer than ``seconds`` only as long as ``rank``'s counter moves in every ``timeout``.

        So a rank that hangs after it has read is named one ``timeout`` later than one that never moved.
        """
        seen = None
        while (message := self._wait_for(key, seconds)) is None:
            count = self._count_of(rank)
            if count == seen or count is None:
                return None
            seen, seconds = count, self.timeout
            if not self.rank:
                # For those who wait for rank 0, which now waits for a slow one.
                self._moved(1_000_000 + time.monotonic_ns() // 1_000_000_000)
        return message

    def _count_of(self, rank: int) -> int | None:
        key = f"{self._prefix}/moving/{rank}"
        return int(json.loads(self._store.get(key))["count"]) if self._store.check([key]) else None

    def _wait_for(self, key: str, seconds: float) -> Message | None:
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:  # DistStoreError in newer releases; its base class in all
            return None
        answer: Message = json.loads(self._store.get(key))
        return answer

    def _silent(self, topic: str, ranks: Sequence[int]) -> RankSilent:
        named = [f"rank {rank} on {self._hosts.get(rank, 'an unknown host')}" for rank in ranks]
        return RankSilent(
            explain(
                f"{len(ranks)} of {self.world} ranks did not answer within {self.timeout:g} s ({topic} the load)",
                expected="every rank calls load_checkpoint, and comes back from it",
                found=f"no word from {shorten(named)}",
                where=self.label,
                do=(
                    "look at the output of those ranks: they failed, hang in a collective, or never called the loader",
                    "DSPATCH_TIMEOUT=SECONDS waits longer",
                ),
            )
        )


def _store() -> Any:
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    if store is None:  # as with MPI, which needs none
        log.warn_once(
            "no-store", "this job has no key-value store, so ranks cannot compare their loads: each judges its own"
        )
    return store


def fitting(message: Message, shrinkable: str) -> Message:
    """Shorten the list under ``shrinkable`` until the message is small enough to send."""
    while len(json.dumps(message)) > MESSAGE_LIMIT - 256 and message[shrinkable]:
        message = {**message, shrinkable: message[shrinkable][:-1]}
    return message
