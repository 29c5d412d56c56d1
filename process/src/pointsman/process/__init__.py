"""What every process of Pointsman does alike: settings, logs, health, and its way from start to exit.

settings    environment and flags, read into a typed model; what is wrong is named
logs        one line a record, as text or as JSON
lifetime    signals, the parts that run until the end, and the order in which they end
health      /healthz, /readyz and /metrics of a process that serves nothing else
arguments   command lines: a mistake is one line
entry       the four of them put together: what a ``__main__`` calls
"""
