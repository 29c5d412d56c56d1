"""Images of chats: fetched or decoded within limits, and encoded by encode workers.

Imported with the first request that has an image. A service without images pays nothing for it.
"""
