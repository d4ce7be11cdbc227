"""An agent whose server was killed, and the server that comes next: what is of the one before is nothing to it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import numpy as np
from support.fuse import wait_until

from mlfs.peers import link, messages, process
from mlfs.peers.landing import Landing
from mlfs.peers.link import Ended
from mlfs.peers.memory import MemoryNetwork
from mlfs.peers.transport import Arrived
from mlfs.places import catalogue
from mlfs.places.checksum import checksum
from mlfs.places.ram import RamTier
from mlfs.tree.samples import Version

VERSION = Version(5000, 1)


def listening(path: Path) -> socket.socket:
    """A socket at which another process began to listen than at any other one: that tells servers apart."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    pid = os.fork()
    if pid == 0:
        listener.listen(1)
        os._exit(0)
    os.waitpid(pid, 0)
    listener.settimeout(10.0)
    return listener


def let_in(listener: socket.socket, ram: RamTier) -> socket.socket:
    """Be the server of an agent that comes."""
    connection = listener.accept()[0]
    connection.settimeout(10.0)
    assert link.unpack(connection.recv(link.LARGEST_BYTES)).kind is link.PacketKind.HELLO
    landing, shown = Landing(1 << 20), catalogue.create(10)
    memory = ram.memory_fds
    about = {
        "landing_bytes": landing.size_bytes, "samples": 10, "memory_files": len(memory), "ssds": 0, "secret": "",
    }  # fmt: skip
    link.send_with_fds(connection, link.pack_json(link.PacketKind.HELLO, about), [landing.fd, shown, *memory])
    landing.handed_over()
    os.close(shown)
    return connection


def test_what_a_server_has_asked_for_is_nothing_to_the_next_one(tmp_path: Path) -> None:
    """Servers number their requests alike: an end of the old one's would be believed, and other bytes be read."""
    network, path, tries = MemoryNetwork(2), tmp_path / "socket", 0
    peer, ram, data = network.port(1), RamTier(1 << 20), os.urandom(VERSION.size_bytes)
    stop, _ = pipe = os.pipe()

    def connect() -> socket.socket:
        nonlocal tries
        tries += 1
        return process.connect(str(path), "/mnt")

    def tries_again(times: int) -> None:
        until = tries + times
        wait_until(lambda: tries >= until)

    listener = listening(path)
    agent = threading.Thread(target=lambda: process.AgentProcess(connect, network.port(0), 60.0).join(stop))
    agent.start()
    server = let_in(listener, ram)
    server.send(link.pack(link.PacketKind.FETCH, [(1, 1, 3, 0, *VERSION, 0)])[0])
    asked: list[int] = []

    def is_asked() -> bool:
        for event in peer.poll():
            assert isinstance(event, Arrived)
            message = messages.Unpacker().unpack(event.data)
            if message is not None and message.kind is messages.MessageKind.ASK:
                assert message.records is not None
                asked.extend(message.records["number"].tolist())
        return bool(asked)

    wait_until(is_asked)
    held = len(os.listdir("/proc/self/fd"))
    server.close()
    listener.close()
    tries_again(1)  # the agent is alone: the bytes come now
    peer.give(0, asked[0], data)
    given = np.array([(asked[0], 0, checksum(data, 3, VERSION))], messages.GIVE)
    peer.send(0, messages.pack(messages.MessageKind.GIVE, given))
    tries_again(2)
    listener = listening(path)
    server = let_in(listener, ram)
    server.send(link.pack(link.PacketKind.FETCH, [(1, 1, 4, 0, *VERSION, 0)])[0])
    wait_until(lambda: is_asked() and len(asked) == 2)
    assert len(os.listdir("/proc/self/fd")) == held  # nothing is kept of the server before
    peer.send(0, messages.pack(messages.MessageKind.GIVE, np.array([(asked[1], 1, 0)], messages.GIVE)))
    server.settimeout(10.0)
    while (packet := link.unpack(server.recv(link.LARGEST_BYTES))).kind is not link.PacketKind.ENDED:
        pass
    assert packet.records.tolist() == [(1, Ended.MISSING)]
    server.send(link.pack(link.PacketKind.JOINED, [(1,)])[0])
    agent.join(10.0)
    assert not agent.is_alive()
    for fd in pipe:
        os.close(fd)
    server.close()
    listener.close()
    ram.close()
