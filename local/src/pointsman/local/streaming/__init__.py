"""``pointsman bench streaming``: latencies of streamed answers under a steady mix of short and long prompts.

``workload``  the prompts and when they are sent      ``client``   one streamed request, timed
``figures``   percentiles and ratios, pure            ``engine``   a local vLLM server with the seed benchmark's knobs
``page``      the HTML report                         ``command``  the command line

The workload and the figures are those of roseinfer's ``benchmark_streaming.py``, so that its results can be compared.
"""
