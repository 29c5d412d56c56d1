"""``make quickstart-multimodal``: images on this computer, and where each of them is encoded.

``run`` the stages · ``image_counts`` what the gateway counts of images · ``command`` options and report
"""
