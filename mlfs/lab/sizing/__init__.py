"""Sizing a system, before it is bought: pure functions behind `mlfs advise`."""
