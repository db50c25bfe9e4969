"""A broker in another process, with the operations of one in this process (docs/adr/0015)."""
