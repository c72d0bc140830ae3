"""The independent formal model of the ring, and the scripts that check it (docs/formal.md)."""
