"""The arithmetic of orders that mlfs serves: which node keeps what, and how reads are dealt to where samples lie.

Pure: numpy in, numpy out. Both the simulator's policies (`mlfs.lab.policies`) and the orders of registered jobs
(`mlfs.orders.served`) compute with these functions.
"""
