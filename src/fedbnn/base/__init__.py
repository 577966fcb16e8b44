"""What every other room stands on: errors, settings, randomness, devices, files."""
