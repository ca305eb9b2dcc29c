"""What ``mr compare`` found, as values, and the ways to show it: one HTML file, Markdown, JSON, a trace for Perfetto."""
