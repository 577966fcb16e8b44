"""The search for settings on validation records: what is tried, how a candidate is judged, and what is written."""
