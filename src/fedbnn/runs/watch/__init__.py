"""A page on 127.0.0.1 that shows a run while it goes on."""

from fedbnn.runs.watch.server import WatchServer

__all__ = ["WatchServer"]
