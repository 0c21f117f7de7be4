"""The trainer's fit loop with rounds as epochs, and the loop over one client's batches inside it."""
