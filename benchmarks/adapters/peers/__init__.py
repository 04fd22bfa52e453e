"""The peers, a file for each, run in virtual environments of their own.

Each is set up as its own documentation recommends for speed, and its commits are durable. All peers
on asyncio get uvloop, whether they ask for it or not.
"""
