"""The scheduler of one node: a pure state machine that decides what is fetched, from where, kept, answered and dropped.

`Scheduler.step(now_s, events) -> commands`: no I/O, no clock, no threads, no callbacks. Two drivers run it: the daemon
(mlfs.engine, with trio, threads and the kernel's page cache) and the simulator (mlfs.lab.sim.detailed, with an event
heap).
"""
