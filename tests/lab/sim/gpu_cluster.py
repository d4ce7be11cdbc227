"""A small cluster of two nodes with four GPUs each, as a scenario file. In: nothing. Out: its text, for the tests."""

TEXT = """
[cluster]
nodes = 2
gpus = 4
compute_MBps = 100
preprocess_MBps = 400
network_MBps = 1000
pfs_MBps = { 1 = 50, 2 = 80 }
[cluster.staging]
name = "staging"
capacity = "2MB"
read_MBps = 1000
threads = 8
[[cluster.classes]]
name = "ram"
capacity = "4MB"
read_MBps = 200
threads = 2
[data]
samples = 160
mean = "100kB"
deviation = "60kB"
[job]
epochs = 3
batch = 16
"""
