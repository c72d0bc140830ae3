"""Every interleaving of the real protocol code, for rings small enough to go through them all."""
