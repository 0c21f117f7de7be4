"""Training steps of small networks as flat lists of batched products."""
