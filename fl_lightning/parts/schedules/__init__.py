"""From which model does a client start, and when does the server act?"""
