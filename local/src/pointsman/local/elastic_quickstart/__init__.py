"""``make quickstart-elastic``: an elastic group on this computer, its groups shown while they change.

``run`` the stages · ``timeline`` what instances computed when, and its picture · ``command`` options and report
"""
