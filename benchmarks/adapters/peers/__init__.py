"""The peers, one file for each, run in virtual environments of their own.

Each is set up as its own documentation recommends for speed, its commits durable.
Those on asyncio all get uvloop, whether they ask for it or not.
"""
