"""What does a client minimise?"""
