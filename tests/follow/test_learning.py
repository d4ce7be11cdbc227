"""What can be learned of a loader's shape from opens that tell nothing."""

from __future__ import annotations

from mlfs.follow.learning import Seen, learn


def test_opens_that_all_lie_before_the_epochs_beginning_teach_nothing() -> None:
    """Reads of another job beside one that resumes: this once ended the daemon."""
    assert learn([Seen(7, 0, 1, -1 - place) for place in range(400)], 400, 8) is None
