"""The console: pages for people, on the broker's own port."""
