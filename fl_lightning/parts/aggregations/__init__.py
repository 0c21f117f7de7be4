"""How are results merged?"""
