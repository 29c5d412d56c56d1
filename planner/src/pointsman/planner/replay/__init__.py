"""Replay: a trace and a policy file through the simulator, with the production ``decide``.

``trace_files``   reads Mooncake, Azure and own recordings
``generators``    synthetic loads by name
``policy_files``  the policy document that is used live, from a file
``command``       ``pointsman replay``
"""
