"""One federation among real parties: what they agree on, what stays at a site, and what a site answers."""
