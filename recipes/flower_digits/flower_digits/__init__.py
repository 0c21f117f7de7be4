"""A Flower app: FedProx on handwritten digits."""
