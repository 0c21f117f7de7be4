"""Lightning's view of clients that train in stacks."""
