"""What the tests share: trees of files, the slow source, mounts of the real command, plain training loops."""
