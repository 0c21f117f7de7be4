"""How does the server move?"""
