"""Pure parts of the elastic manager: the decisions of LoongServe (SOSP'24, arXiv 2404.09526)."""
