"""The Pointsman API: custom resources as models, the wire protocol, and the schema generator."""
