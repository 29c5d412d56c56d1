"""The engine on this computer: its environment, the fork server that starts it fast, and models made on the spot."""
