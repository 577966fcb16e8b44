"""From a configuration to a run folder that survives a crash."""
