"""What Lightning sees of clients that train in stacks."""
