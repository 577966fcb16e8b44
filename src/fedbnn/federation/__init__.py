"""One federation: the contract of a method, its messages, the round loop, where clients run, how they are scored."""
