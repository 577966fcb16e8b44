"""The charts of the page, one file each; all return inline SVG."""
