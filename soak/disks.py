"""A small file system in memory, which can become full or read-only. Only root on Linux can mount it."""

import os
import subprocess
import sys
import time
from pathlib import Path


def can_mount() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


class Disk:
    """A file system that is mounted at `directory`, and unlimited until `resize` is called."""

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "soak", str(directory)], check=True)

    def used(self) -> int:
        """Returns the number of bytes in use."""
        state = os.statvfs(self.directory)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def remount(self, options: str):
        """Changes the options, such as "size=100k" or "ro". A file that is open for writing delays "ro"."""
        command = ["mount", "-o", f"remount,{options}", str(self.directory)]
        for _ in range(1000):
            if subprocess.run(command, capture_output=True).returncode == 0:
                return
            time.sleep(0.001)
        raise RuntimeError(f"failed: {' '.join(command)}")


def unmount(directory: Path):
    subprocess.run(["umount", "-l", str(directory)], check=True)
