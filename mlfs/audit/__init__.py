"""The auditor: whether a script reads what its author believes that it reads.

`reads` keeps the last reads of a mount, `epochs` cuts them into runs, loaders, ranks and epochs, `orders` compares
orders, `findings` has the rules, `report` what is said. Nothing here needs a registration, or knows what order a job
should have.
"""
