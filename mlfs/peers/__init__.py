"""Other nodes over MPI: the agent of a node, how agents move bytes, and what an agent may read of its own node."""
