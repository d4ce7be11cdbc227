"""For torch users: samplers that read the order which mlfs serves. Importing this imports torch; nothing else does."""

from mlfs.torch.sampler import ServedBatchSampler, ServedSampler

__all__ = ["ServedBatchSampler", "ServedSampler"]
