"""Public feature maps: fitted on the alignment set alone, the same for everybody."""
