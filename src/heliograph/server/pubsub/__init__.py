"""The Pub/Sub v1 door: its methods, resources, names and texts, whatever transport carries them."""
