"""An embedded cluster on one computer: real control plane, process node, engine environment."""
