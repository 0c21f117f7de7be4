"""A Flower app for the tests with a real SuperLink."""
